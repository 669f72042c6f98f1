package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// View is the objects of one resource in the client's namespace that match the
// selectors.
type View[T any] struct {
	client   *Client
	resource Resource[T]
	labels   string
	fields   string
	cfg      Config
	rest     rest.Interface
	params   runtime.ParameterCodec
}

// Select returns the view of r that the label and field selectors leave; "" for
// all. It does not connect.
func Select[T any](c *Client, r Resource[T], labels, fields string) (*View[T], error) {
	v := &View[T]{client: c, resource: r, labels: labels, fields: fields, cfg: c.cfg}
	gv := r.groupVersion()
	scheme := runtime.NewScheme() // it knows this kind and nothing else
	scheme.AddKnownTypeWithName(gv.WithKind(r.Kind), r.object)
	scheme.AddKnownTypeWithName(gv.WithKind(r.Kind+"List"), r.list)
	metav1.AddToGroupVersion(scheme, gv)
	rc := rest.CopyConfig(c.rest)
	rc.APIPath, rc.GroupVersion = "/apis", &gv
	if gv.Group == "" {
		rc.APIPath = "/api"
	}
	rc.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	rc.ContentType, rc.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	rc.Dial, rc.QPS, rc.UserAgent = c.conns.DialContext, -1, "pointsman"
	rc.WarningHandlerWithContext = rest.NoWarnings{}
	var err error
	if v.rest, err = rest.RESTClientFor(rc); err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	v.params = runtime.NewParameterCodec(scheme)
	return v, nil
}

// Patience sets how long v waits after a failure, doubling from first to most.
func (v *View[T]) Patience(first, most time.Duration) { v.cfg.Backoff, v.cfg.MaxBackoff = first, most }

// Page returns one page of at most limit objects (0 for all), the listing's
// version, and where the next page goes on, "" behind the last.
func (v *View[T]) Page(ctx context.Context, limit int64, from string) (items []T, version, next string, err error) {
	ctx, cancel := context.WithTimeout(quiet(ctx), v.cfg.Timeout)
	defer cancel()
	list := v.resource.list.DeepCopyObject()
	err = v.request(&metav1.ListOptions{Limit: limit, Continue: from}).Do(ctx).Into(list)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v: %w", v.cfg.Timeout, err)
	}
	if err != nil {
		return nil, "", "", v.explain("list", err)
	}
	l, err := meta.ListAccessor(list)
	if err != nil {
		return nil, "", "", v.explain("list", err)
	}
	return v.resource.items(list), l.GetResourceVersion(), l.GetContinue(), nil
}

// watch opens a watch of what changes behind a version, which the API server
// ends after the given time.
func (v *View[T]) watch(ctx context.Context, version string, lasting time.Duration) (watch.Interface, error) {
	seconds := int64((lasting + time.Second - 1) / time.Second)
	w, err := v.request(&metav1.ListOptions{
		ResourceVersion: version, Watch: true, AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	}).Watch(quiet(ctx))
	if err != nil {
		return nil, v.explain("watch", err)
	}
	return w, nil
}

func (v *View[T]) request(opts *metav1.ListOptions) *rest.Request {
	opts.LabelSelector, opts.FieldSelector = v.labels, v.fields
	return v.rest.Get().Namespace(v.client.Namespace).Resource(v.resource.Plural).VersionedParams(opts, v.params).MaxRetries(0)
}

// Request returns a request of v's client for what Follow does not do, such as a
// patch of an object by a test.
func (v *View[T]) Request(verb string) *rest.Request {
	return v.rest.Verb(verb).Namespace(v.client.Namespace).Resource(v.resource.Plural)
}

// quiet keeps the client library from logging: what matters comes back as an
// error.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }
