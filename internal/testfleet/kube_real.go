package testfleet

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// StartRealKube starts the kube-apiserver binary of the folder that the variable
// KUBEBUILDER_ASSETS names, on an etcd of its own, both of which end with the
// test. It returns a kubeconfig's path with all permissions. Without the variable
// the test is skipped. Nothing but the API server runs: Pods become what their
// status is patched to.
func StartRealKube(tb testing.TB) string {
	tb.Helper()
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		tb.Skip("KUBEBUILDER_ASSETS names no folder with a kube-apiserver")
	}
	etcd := StartEtcd(tb, nil)
	dir := tb.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			tb.Fatal(err)
		}
		return path
	}
	host, port, err := net.SplitHostPort(freeAddress(tb))
	if err != nil {
		tb.Fatal(err)
	}
	key := write("sa.key", accountKey(tb))
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))   // the test's own context ends before its cleanup
	cmd := exec.CommandContext(ctx, filepath.Join(assets, "kube-apiserver"), //nolint:gosec // the developer's own binary
		"--etcd-servers="+etcd.Endpoint, "--cert-dir="+dir, "--bind-address="+host, "--advertise-address="+host, "--secure-port="+port, "--endpoint-reconciler-type=none",
		"--service-account-issuer=https://test", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--token-auth-file="+write("tokens.csv", []byte(kubeToken+",admin,admin,system:masters\n")),
		"--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24", "--allow-privileged=true",
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition")
	var said bytes.Buffer
	cmd.Stderr, cmd.Cancel = &said, func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err = cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	tb.Cleanup(func() { cancel(); <-exited })
	server := "https://" + net.JoinHostPort(host, port)
	awaitReady(tb, server, kubeToken, exited, &said)
	ca, err := os.ReadFile(filepath.Join(dir, "apiserver.crt")) //nolint:gosec // self-signed, for its own address
	if err != nil {
		tb.Fatal(err)
	}
	return writeKubeconfig(tb, server, ca, kubeToken)
}

// accountKey returns a new key for service accounts' tokens.
func accountKey(tb testing.TB) []byte {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

func awaitReady(tb testing.TB, server, token string, exited <-chan struct{}, said *bytes.Buffer) {
	tb.Helper()
	client := &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec // its certificate is being made
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, server+"/readyz", http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); {
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-exited:
			tb.Fatalf("kube-apiserver exited:\n%s", said)
		case <-time.After(100 * time.Millisecond): //nolint:forbidigo // a poll of at most a minute in a test
		}
	}
	tb.Fatal("kube-apiserver was not ready within a minute")
}
