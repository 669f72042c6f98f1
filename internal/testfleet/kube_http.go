package testfleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"pointsman/internal/retry"
)

// kubePage is what is left of a listing's snapshot.
type kubePage struct {
	version uint64
	rest    []*kubeObject
}

// kubeRequest is one request for a resource.
type kubeRequest struct {
	*Kube
	w               http.ResponseWriter
	r               *http.Request
	query           url.Values
	resource        KubeResource
	namespace, name string
	match           func(*kubeObject) bool
}

func (k *Kube) serve(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	delay := k.delay
	k.mu.Unlock()
	if !retry.Sleep(r.Context(), delay) {
		return
	}
	resource, namespace, name, ok := k.resource(r.URL.Path)
	q := &kubeRequest{Kube: k, w: w, r: r, query: r.URL.Query(), resource: resource, namespace: namespace, name: name}
	switch {
	case r.Header.Get("Authorization") != "Bearer "+k.Token:
		q.fail(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
	case !ok:
		q.fail(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	case !acceptsJSON(r.Header.Get("Accept")):
		q.fail(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "only application/json is served")
	default:
		q.route()
	}
}

func acceptsJSON(accept string) bool {
	return accept == "" || strings.Contains(accept, "application/json") || strings.Contains(accept, "*/*")
}

func (q *kubeRequest) verb() string {
	switch {
	case q.r.Method == http.MethodPost:
		return "create"
	case q.r.Method != http.MethodGet:
		return strings.ToLower(q.r.Method)
	case q.query.Get("watch") == "true" || q.query.Get("watch") == "1":
		return "watch"
	case q.name != "":
		return "get"
	}
	return "list"
}

func (q *kubeRequest) route() {
	verb := q.verb()
	q.mu.Lock()
	q.counts[verb]++
	denied := q.denied[verb+" "+q.resource.Plural]
	q.mu.Unlock()
	if denied {
		q.fail(http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf(
			"%s is forbidden: User \"system:serviceaccount:test:test\" cannot %s resource %q in API group %q in the namespace %q",
			q.resource.Plural, verb, q.resource.Plural, q.resource.Group, q.namespace))
		return
	}
	if !q.selectors() {
		return
	}
	switch verb {
	case "list":
		q.list()
	case "watch":
		q.watch()
	case "get":
		q.get()
	case "create":
		q.create()
	case "patch":
		q.patch()
	case "delete":
		q.delete()
	default:
		q.fail(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the server does not allow this method on the requested resource")
	}
}

func (q *kubeRequest) fail(code int, reason metav1.StatusReason, message string) {
	q.w.Header().Set("Content-Type", "application/json")
	q.w.WriteHeader(code)
	_ = json.NewEncoder(q.w).Encode(status(code, reason, message))
}

func status(code int, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message, //nolint:gosec // an HTTP status
	}
}

func (q *kubeRequest) answer(code int, body any) {
	q.w.Header().Set("Content-Type", "application/json")
	q.w.WriteHeader(code)
	_ = json.NewEncoder(q.w).Encode(body)
}

// selectors reads the label selector and the field selectors that every resource
// has.
func (q *kubeRequest) selectors() bool {
	ls, err := labels.Parse(q.query.Get("labelSelector"))
	if err != nil {
		q.fail(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return false
	}
	fs, err := fields.ParseSelector(q.query.Get("fieldSelector"))
	if err != nil {
		q.fail(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return false
	}
	for _, f := range fs.Requirements() {
		if f.Field != "metadata.name" && f.Field != "metadata.namespace" {
			q.fail(http.StatusBadRequest, metav1.StatusReasonBadRequest, "field label not supported: "+f.Field)
			return false
		}
	}
	q.match = func(o *kubeObject) bool {
		return (q.namespace == "" || o.namespace == q.namespace) && (q.name == "" || o.name == q.name) &&
			ls.Matches(labels.Set(o.labels)) &&
			fs.Matches(fields.Set{"metadata.name": o.name, "metadata.namespace": o.namespace})
	}
	return true
}

// list answers from one snapshot: later pages show what was when the first was
// read.
func (q *kubeRequest) list() {
	limit, _ := strconv.Atoi(q.query.Get("limit"))
	token := q.query.Get("continue")
	q.mu.Lock()
	page, known := q.pages[token]
	delete(q.pages, token)
	if token == "" {
		page, known = kubePage{version: q.store.version, rest: q.store.list(q.resource, q.match)}, true
	}
	asked, _ := strconv.ParseUint(q.query.Get("resourceVersion"), 10, 64)
	latest := q.store.version
	q.mu.Unlock()
	if !known {
		q.fail(http.StatusGone, metav1.StatusReasonExpired, "The provided continue parameter is too old to display a consistent list result.")
		return
	}
	if asked > latest {
		q.fail(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, fmt.Sprintf("Too large resource version: %d, current: %d", asked, latest))
		return
	}
	items := page.rest
	meta := map[string]any{"resourceVersion": strconv.FormatUint(page.version, 10)}
	if limit > 0 && limit < len(items) {
		next := fmt.Sprintf("%d-%s", page.version, items[limit].name)
		q.mu.Lock()
		q.pages[next] = kubePage{version: page.version, rest: items[limit:]}
		q.mu.Unlock()
		meta["continue"], meta["remainingItemCount"] = next, len(items)-limit
		items = items[:limit]
	}
	out := make([]json.RawMessage, 0, len(items))
	for _, o := range items {
		out = append(out, o.encoded)
	}
	q.answer(http.StatusOK, map[string]any{
		"kind": q.resource.Kind + "List", "apiVersion": q.resource.apiVersion(), "metadata": meta, "items": out,
	})
}

func (q *kubeRequest) find() *kubeObject {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.store.objects[q.resource][q.namespace+"/"+q.name]
}

func (q *kubeRequest) missing() {
	q.fail(http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("%s %q not found", q.resource.Plural, q.name))
}

func (q *kubeRequest) get() {
	if o := q.find(); o != nil {
		q.answer(http.StatusOK, o.encoded)
		return
	}
	q.missing()
}

func (q *kubeRequest) body() (map[string]any, bool) {
	var obj map[string]any
	if err := json.NewDecoder(q.r.Body).Decode(&obj); err != nil || obj == nil {
		q.fail(http.StatusBadRequest, metav1.StatusReasonBadRequest, "the body is no JSON object")
		return nil, false
	}
	return obj, true
}

func (q *kubeRequest) create() {
	obj, ok := q.body()
	if !ok {
		return
	}
	meta := metadata(obj)
	meta["namespace"] = cmp.Or(q.namespace, text(meta, "namespace"))
	q.name = text(meta, "name")
	if q.find() != nil {
		q.fail(http.StatusConflict, metav1.StatusReasonAlreadyExists, fmt.Sprintf("%s %q already exists", q.resource.Plural, q.name))
		return
	}
	q.mu.Lock()
	o := q.store.put(q.resource, obj)
	q.mu.Unlock()
	q.answer(http.StatusCreated, o.encoded)
}

// patch takes merge patches, the form that Infera's launchers send (Infera
// infera/common/registration_k8s.py).
func (q *kubeRequest) patch() {
	if ct := q.r.Header.Get("Content-Type"); ct != "application/merge-patch+json" {
		q.fail(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, "the body of the request was in an unknown format: "+ct)
		return
	}
	patch, ok := q.body()
	if !ok {
		return
	}
	q.mu.Lock()
	was := q.store.objects[q.resource][q.namespace+"/"+q.name]
	var now *kubeObject
	if was != nil {
		now = q.store.put(q.resource, mergePatch(was.fields, patch))
	}
	q.mu.Unlock()
	if now == nil {
		q.missing()
		return
	}
	q.answer(http.StatusOK, now.encoded)
}

func (q *kubeRequest) delete() {
	q.mu.Lock()
	gone := q.store.remove(q.resource, q.namespace+"/"+q.name)
	q.mu.Unlock()
	if gone == nil {
		q.missing()
		return
	}
	q.answer(http.StatusOK, gone.encoded)
}
