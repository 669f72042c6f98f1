package simengine

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"pointsman/wire"
)

// kubeTimeout bounds each call to the API server (Infera: 10 s).
const kubeTimeout = 10 * time.Second

// KubeConfig is the registration as an annotation of the worker's own Pod. It is
// off while API is empty.
type KubeConfig struct {
	API       string        // base URL of the API server; "" registers at no Pod
	TokenFile string        // holds the bearer token, read anew for each call; "" sends none
	CAFile    string        // PEM certificates that the server's is checked with; "" takes the system's
	Namespace string        // of the Pod
	Pod       string        // its name
	Refresh   time.Duration // how often the annotation is asserted again. Default 30 s
}

func (c *KubeConfig) validate() error {
	if c.API == "" {
		return nil
	}
	var errs []error
	if u, err := url.Parse(c.API); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		errs = append(errs, fmt.Errorf("kubernetes API %q: give a URL such as https://host:443", c.API))
	}
	if c.Pod == "" || c.Namespace == "" {
		errs = append(errs, fmt.Errorf("pod %q in namespace %q: give both names", c.Pod, c.Namespace))
	}
	if c.Refresh <= 0 {
		errs = append(errs, fmt.Errorf("refresh of %s: give more than 0", c.Refresh))
	}
	return errors.Join(errs...)
}

// kubeRegistrar keeps one record in the annotation of the worker's Pod as
// Infera's launcher does: written when the engine is ready, asserted again at
// every tick in case someone took it away, cleared before the drain
// (infera/common/registration_k8s.py).
type kubeRegistrar struct {
	cfg    KubeConfig
	url    string
	patch  []byte
	log    *slog.Logger
	client *http.Client
	done   chan struct{} // closed once the annotation is written
}

func newKubeRegistrar(cfg KubeConfig, value []byte, log *slog.Logger) (*kubeRegistrar, error) {
	patch, err := annotationPatch(string(value))
	if err != nil {
		return nil, err
	}
	t := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("certificates of the API server: %w", err)
		}
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("certificates of the API server: none in %s", cfg.CAFile)
		}
	}
	return &kubeRegistrar{
		cfg: cfg, patch: patch, log: log, done: make(chan struct{}),
		url:    strings.TrimRight(cfg.API, "/") + "/api/v1/namespaces/" + url.PathEscape(cfg.Namespace) + "/pods/" + url.PathEscape(cfg.Pod),
		client: &http.Client{Transport: t},
	}, nil
}

// annotationPatch returns the JSON merge patch that sets the annotation to
// value, and clears it when value is nil.
func annotationPatch(value any) ([]byte, error) {
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{wire.Annotation: value}}})
	if err != nil {
		return nil, fmt.Errorf("patch of the annotation: %w", err)
	}
	return b, nil
}

// run writes the annotation, each second until it is written, and again at every
// refresh, until ctx is done. A call that has begun is not broken off while the
// engine lives: the server could carry it out after the one that clears.
func (r *kubeRegistrar) run(ctx, life context.Context) {
	r.registerUntilDone(ctx, life)
	tick := time.NewTicker(r.cfg.Refresh)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if ctx.Err() != nil {
			return // both were ready
		}
		if err := r.send(life, r.patch); err != nil && ctx.Err() == nil {
			r.log.LogAttrs(ctx, slog.LevelWarn, "annotation not refreshed", slog.String("pod", r.pod()), slog.Any("error", err))
		}
	}
}

func (r *kubeRegistrar) registerUntilDone(ctx, life context.Context) {
	retry := time.NewTicker(time.Second)
	defer retry.Stop()
	for {
		err := r.send(life, r.patch)
		if err == nil {
			close(r.done)
			r.log.LogAttrs(ctx, slog.LevelInfo, "registered", slog.String("pod", r.pod()))
			return
		}
		if ctx.Err() == nil {
			r.log.LogAttrs(ctx, slog.LevelWarn, "registration failed", slog.String("pod", r.pod()), slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		}
	}
}

func (r *kubeRegistrar) registered() <-chan struct{} { return r.done }

func (r *kubeRegistrar) pod() string { return r.cfg.Namespace + "/" + r.cfg.Pod }

// withdraw clears the annotation. run must have returned. A Pod that is gone has
// none.
func (r *kubeRegistrar) withdraw(ctx context.Context) error {
	patch, err := annotationPatch(nil)
	if err == nil {
		err = r.send(ctx, patch)
	}
	if status, ok := errors.AsType[*kubeError](err); ok && status.code == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("clear the annotation of %s: %w", r.pod(), err)
	}
	return nil
}

func (r *kubeRegistrar) close() { r.client.CloseIdleConnections() }

// kubeError is the API server's refusal.
type kubeError struct {
	code    int
	message string // the server's words
}

func (e *kubeError) Error() string {
	return fmt.Sprintf("the API server answers %d: %s", e.code, e.message)
}

// send patches the Pod.
func (r *kubeRegistrar) send(ctx context.Context, patch []byte) error {
	ctx, cancel := context.WithTimeout(ctx, kubeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, r.url, bytes.NewReader(patch))
	if err != nil {
		return fmt.Errorf("patch: %w", err)
	}
	req.Header.Set("Content-Type", "application/merge-patch+json")
	req.Header.Set("Accept", "application/json")
	if err = r.authorize(req); err != nil {
		return err
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return err //nolint:wrapcheck // a *url.Error names the method and the URL
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20)) // to its end, so that the connection is used again
	if resp.StatusCode/100 == 2 {
		return nil
	}
	if err != nil {
		return &kubeError{resp.StatusCode, err.Error()}
	}
	return &kubeError{resp.StatusCode, string(body[:min(len(body), 300)])}
}

// authorize reads the token each time: the kubelet replaces it before it expires.
func (r *kubeRegistrar) authorize(req *http.Request) error {
	if r.cfg.TokenFile == "" {
		return nil
	}
	token, err := os.ReadFile(r.cfg.TokenFile)
	if err != nil {
		return fmt.Errorf("token: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	return nil
}
