package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/klog/v2"
)

// namespaceFile holds the namespace of the Pod that the process runs in.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// pods reads the Pods of one namespace and selector from one API server.
type pods struct {
	rest      rest.Interface
	params    runtime.ParameterCodec
	conns     *connrotation.Dialer
	host      string
	namespace string
	selector  string
	timeout   time.Duration
}

// newPods reads the credentials that cfg names. It does not connect.
func newPods(cfg Config) (*pods, error) {
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
	// A dialer of our own, so that connections that went silent can be closed:
	// over HTTP/2 the next request would take the same one.
	dialer := connrotation.NewDialer((&net.Dialer{Timeout: cfg.Timeout, KeepAlive: 30 * time.Second}).DialContext)
	client, params, err := newREST(rc, dialer)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	namespace := cfg.Namespace
	if namespace == "" {
		namespace = ownNamespace(namespaceFile, loader)
	}
	return &pods{
		rest: client, params: params, conns: dialer, host: rc.Host,
		namespace: namespace, selector: strings.TrimSpace(cfg.Selector), timeout: cfg.Timeout,
	}, nil
}

// newREST returns a client that knows Pods and nothing else.
func newREST(rc *rest.Config, dialer *connrotation.Dialer) (rest.Interface, runtime.ParameterCodec, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, new(corev1.Pod), new(corev1.PodList))
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	rc = rest.CopyConfig(rc)
	rc.APIPath, rc.GroupVersion = "/api", &corev1.SchemeGroupVersion
	rc.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	rc.ContentType, rc.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	rc.Dial, rc.QPS, rc.UserAgent = dialer.DialContext, -1, "pointsman"
	rc.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := rest.RESTClientFor(rc)
	return client, runtime.NewParameterCodec(scheme), err
}

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

// list returns one page of the Pods.
func (p *pods) list(ctx context.Context, limit int64, from string) (*corev1.PodList, error) {
	ctx, cancel := context.WithTimeout(quiet(ctx), p.timeout)
	defer cancel()
	list := new(corev1.PodList)
	err := p.request(&metav1.ListOptions{LabelSelector: p.selector, Limit: limit, Continue: from}).Do(ctx).Into(list)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v: %w", p.timeout, err)
	}
	if err != nil {
		return nil, p.explain("list", err)
	}
	return list, nil
}

// watch opens a watch of what changes behind a version, which the API server
// ends after the given time.
func (p *pods) watch(ctx context.Context, version string, lasting time.Duration) (watch.Interface, error) {
	seconds := int64((lasting + time.Second - 1) / time.Second)
	w, err := p.request(&metav1.ListOptions{
		LabelSelector: p.selector, ResourceVersion: version,
		Watch: true, AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	}).Watch(quiet(ctx))
	if err != nil {
		return nil, p.explain("watch", err)
	}
	return w, nil
}

func (p *pods) request(opts *metav1.ListOptions) *rest.Request {
	return p.rest.Get().Namespace(p.namespace).Resource("pods").VersionedParams(opts, p.params).MaxRetries(0)
}

// quiet keeps the client library from logging: what matters comes back as an
// error.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }
