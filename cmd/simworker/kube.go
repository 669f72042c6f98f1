package main

import (
	"cmp"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"pointsman/internal/simengine"
)

// serviceAccount is where the kubelet mounts what a Pod needs to reach the API
// server.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// kubeNames are the flags of the registration at a Pod, whose defaults are the
// Pod's own environment (Infera infera/common/k8s_client.py).
type kubeNames struct{ api, token, ca, namespace, pod string }

func (n *kubeNames) bind(fs *pflag.FlagSet, c *simengine.KubeConfig) {
	fs.StringVar(&n.api, "kube-api", "", "URL of the API server; empty for that of the cluster that this runs in, with the Pod's service account")
	fs.StringVar(&n.token, "kube-token-file", "", "bearer token for --kube-api, read anew for each call")
	fs.StringVar(&n.ca, "kube-ca", "", "PEM certificates for --kube-api")
	fs.StringVar(&n.namespace, "pod-namespace", "", "namespace of the Pod; empty takes $POD_NAMESPACE, else the service account's")
	fs.StringVar(&n.pod, "pod-name", "", "Pod that is annotated; empty takes $POD_NAME")
	fs.DurationVar(&c.Refresh, "kube-refresh", c.Refresh, "how often the annotation is asserted again")
}

// apply fills in what the flags leave to the environment.
func (n *kubeNames) apply(c *simengine.Config, getenv func(string) string) {
	k := &c.Kube
	k.API, k.TokenFile, k.CAFile = n.api, n.token, n.ca
	if k.API == "" {
		host := cmp.Or(getenv("KUBERNETES_SERVICE_HOST"), "kubernetes.default.svc")
		k.API = "https://" + net.JoinHostPort(host, cmp.Or(getenv("KUBERNETES_SERVICE_PORT"), "443"))
		k.TokenFile = cmp.Or(k.TokenFile, filepath.Join(serviceAccount, "token"))
		k.CAFile = cmp.Or(k.CAFile, filepath.Join(serviceAccount, "ca.crt"))
	}
	k.Pod = cmp.Or(n.pod, getenv("POD_NAME"))
	k.Namespace = cmp.Or(n.namespace, getenv("POD_NAMESPACE"), ownNamespace(filepath.Join(serviceAccount, "namespace")))
	c.AdvertiseHost = cmp.Or(c.AdvertiseHost, getenv("POD_IP"))
}

// ownNamespace returns what file holds, else "default".
func ownNamespace(file string) string {
	data, err := os.ReadFile(file) //nolint:gosec // a fixed path
	if err != nil {
		return "default"
	}
	return cmp.Or(strings.TrimSpace(string(data)), "default")
}
