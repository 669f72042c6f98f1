package kube

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// What can end a watch beside the API server's own errors.
var (
	errSilence = errors.New("no sign of life from the API server")
	errMute    = errors.New("the watch ended without an event or a bookmark, which proves nothing")
)

// explain says which request failed and, where a permission is missing, which
// one to grant.
func (v *View[T]) explain(verb string, err error) error {
	ns, name := v.client.Namespace, v.resource.fullName()
	where := fmt.Sprintf("%s %s in namespace %q of %s", verb, name, ns, v.client.Host)
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s: not allowed: grant it with a Role and a RoleBinding there, such as "+
			"`kubectl -n %s create role pointsman-discovery --verb=get,list,watch --resource=%s`: %w", where, ns, name, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: the credentials are not accepted: check the service account's token or the kubeconfig: %w", where, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s: the resource is not installed: %w", where, err)
	}
	return fmt.Errorf("%s: %w", where, err)
}

// expired reports whether the API server no longer has the version asked for.
func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// routine reports whether err asks for nothing but another listing.
func routine(err error) bool { return expired(err) || errors.Is(err, errMute) }

// Unavailable reports whether err says that there is no such resource, or that
// this account has no role to see it.
func Unavailable(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) }

// Reason returns the metric label of what went wrong, one of a fixed set.
func Reason(err error) string {
	status, answered := errors.AsType[*apierrors.StatusError](err)
	switch {
	case errors.Is(err, errSilence):
		return "silence"
	case errors.Is(err, errMute):
		return "mute"
	case expired(err):
		return "expired"
	case apierrors.IsForbidden(err):
		return "forbidden"
	case apierrors.IsUnauthorized(err):
		return "unauthorized"
	case apierrors.IsTooManyRequests(err):
		return "throttled"
	case answered && status.Status().Code >= http.StatusBadRequest:
		return "server"
	}
	return "unreachable"
}
