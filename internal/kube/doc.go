// Package kube follows objects of a Kubernetes API server: a listing, then a
// watch from the listing's version on, for as long as it is asked to.
//
// It is what the discovery adapters that read Kubernetes have in common. A
// [Client] holds the credentials and connections, a [View] is one resource with
// its selectors, and [View.Follow] hands all that happens to a [Handler].
//
// The API server ends each watch after a while; the next one goes on where it
// ended, and nothing is listed again. A version that the server no longer has, a
// watch that brings neither an event nor a bookmark, and any error are followed
// by a new listing. A connection that is open but silent counts as dead and is
// closed. A server that is down or forbids the listing is waited for.
//
// # Concurrency
//
// A Client may be shared by any number of Views. Follow calls its Handler from
// the goroutine it was called in; a watch has a goroutine of the client
// library's, which ends with it.
package kube
