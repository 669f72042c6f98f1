package kube

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
)

func TestTheNamespaceIsThePodsOwn(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	file := filepath.Join(t.TempDir(), "namespace")
	if err := os.WriteFile(file, []byte("serving\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(config, []byte(`{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "namespace": "lab"}}],
		"clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, file, config, want string }{
		{"the service account's before the kubeconfig's", file, config, "serving"},
		{"the kubeconfig's", file + "-none", config, "lab"},
		{"the default", file + "-none", "", "default"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rules := clientcmd.NewDefaultClientConfigLoadingRules()
			rules.ExplicitPath = tc.config
			loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
			if got := ownNamespace(tc.file, loader); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestAnAPIServerThatAsksForPatienceGetsIt(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want time.Duration
	}{
		{errMute, 0},
		{apierrors.NewTooManyRequests("busy", 7), 7 * time.Second},
		{fmt.Errorf("list pods: %w", apierrors.NewTooManyRequests("busy", 7)), 7 * time.Second},
		{apierrors.NewTooManyRequests("very busy", 3600), 30 * time.Second},
	} {
		if got := asked(tc.err, 30*time.Second); got != tc.want {
			t.Errorf("%v: %v, want %v", tc.err, got, tc.want)
		}
	}
}

func TestWhatWentWrongHasAFixedSetOfNames(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for want, err := range map[string]error{
		"silence":      fmt.Errorf("%w for 1s", errSilence),
		"mute":         errMute,
		"expired":      apierrors.NewResourceExpired("too old"),
		"forbidden":    fmt.Errorf("list: %w", apierrors.NewForbidden(pods, "", nil)),
		"unauthorized": apierrors.NewUnauthorized("who"),
		"throttled":    apierrors.NewTooManyRequests("busy", 1),
		"server":       apierrors.NewInternalError(io.ErrUnexpectedEOF),
		"unreachable":  io.EOF,
	} {
		if got := Reason(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
