package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pointsman/internal/simengine"
)

func TestThePodsEnvironmentSaysWhereToRegister(t *testing.T) {
	pod := map[string]string{
		"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443",
		"POD_NAME": "w-0", "POD_NAMESPACE": "models", "POD_IP": "10.1.2.3",
	}
	const account = "/var/run/secrets/kubernetes.io/serviceaccount"
	for _, tc := range []struct {
		name, args, host string
		env              map[string]string
		want             simengine.KubeConfig
	}{
		{
			"a Pod needs no flag", "", "10.1.2.3", pod,
			simengine.KubeConfig{
				API: "https://[fd00::1]:6443", TokenFile: account + "/token", CAFile: account + "/ca.crt", Namespace: "models", Pod: "w-0",
			},
		},
		{
			"flags come first", "--kube-api http://h:1 --pod-name x --pod-namespace y --advertise-host a --kube-token-file t --kube-ca c", "a", pod,
			simengine.KubeConfig{API: "http://h:1", TokenFile: "t", CAFile: "c", Namespace: "y", Pod: "x"},
		},
		{
			"another server does not get the service account's token", "--kube-api https://h:1", "10.1.2.3", pod,
			simengine.KubeConfig{API: "https://h:1", Namespace: "models", Pod: "w-0"},
		},
		{
			"the API server has a name of its own", "--pod-namespace n", "",
			map[string]string{"POD_NAME": "w-0"},
			simengine.KubeConfig{
				API: "https://kubernetes.default.svc:443", TokenFile: account + "/token", CAFile: account + "/ca.crt", Namespace: "n", Pod: "w-0",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, name := range []string{"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "POD_NAME", "POD_NAMESPACE", "POD_IP"} {
				t.Setenv(name, tc.env[name])
			}
			o, err := parse(append([]string{"--discovery-backend", "kubernetes"}, strings.Fields(tc.args)...), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			tc.want.Refresh = simengine.DefaultConfig().Kube.Refresh
			if o.engine.Kube != tc.want || o.engine.AdvertiseHost != tc.host {
				t.Errorf("%+v at %q\nwant %+v at %q", o.engine.Kube, o.engine.AdvertiseHost, tc.want, tc.host)
			}
			if o.engine.Etcd.Endpoint != "" {
				t.Error("it registers in etcd, too")
			}
		})
	}
}

func TestAPodWithoutANameCannotRegister(t *testing.T) {
	t.Setenv("POD_NAME", "")
	_, err := parse([]string{"--discovery-backend", "kubernetes", "--kube-api", "h:1", "--kube-refresh", "0s"}, io.Discard)
	for _, part := range []string{"give both names", "give a URL", "refresh"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %v", part, err)
		}
	}
}

func TestTheNamespaceIsTheServiceAccounts(t *testing.T) {
	dir := t.TempDir()
	for content, want := range map[string]string{"models\n": "models", " ": "default"} {
		file := filepath.Join(dir, "namespace")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := ownNamespace(file); got != want {
			t.Errorf("%q: %q, want %q", content, got, want)
		}
	}
	if got := ownNamespace(filepath.Join(dir, "none")); got != "default" {
		t.Errorf("without the file %q", got)
	}
}
