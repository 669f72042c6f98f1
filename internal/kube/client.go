package kube

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/connrotation"
)

// namespaceFile holds the namespace of the Pod that the process runs in.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Client is an API server and the credentials for it.
type Client struct {
	Host      string // as the credentials name it
	Namespace string // Config's, or what stands for it

	cfg   Config
	rest  *rest.Config
	conns *connrotation.Dialer
}

// NewClient reads the credentials that cfg names. It does not connect.
func NewClient(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = cfg.Kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
	rc, err := loader.ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("kubernetes: no API server is known: run in a Pod with a service account, or set KUBECONFIG")
	case err != nil:
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	c := &Client{Host: rc.Host, Namespace: cfg.Namespace, cfg: cfg, rest: rc}
	// A dialer of our own, so that connections that went silent can be closed:
	// over HTTP/2 the next request would take the same one.
	c.conns = connrotation.NewDialer((&net.Dialer{Timeout: cfg.Timeout, KeepAlive: 30 * time.Second}).DialContext)
	if c.Namespace == "" {
		c.Namespace = ownNamespace(namespaceFile, loader)
	}
	return c, nil
}

// Close closes the client's connections. Requests open new ones.
func (c *Client) Close() { c.conns.CloseAll() }

// ownNamespace returns the namespace that file holds, else that of the
// kubeconfig's context, else "default".
func ownNamespace(file string, loader clientcmd.ClientConfig) string {
	if data, err := os.ReadFile(file); err == nil { //nolint:gosec // a fixed path
		if ns := strings.TrimSpace(string(data)); ns != "" {
			return ns
		}
	}
	if ns, _, err := loader.Namespace(); err == nil && ns != "" {
		return ns
	}
	return metav1.NamespaceDefault
}
