package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pointsman/internal/testfleet"
)

func TestAWatchGoesOnWhereTheLastOneEnded(t *testing.T) {
	for name, end := range map[string]func(*cluster){
		"it ends in good order":       func(c *cluster) { c.EndWatches() },
		"its connection is broken":    func(c *cluster) { c.Drop() },
		"it ends again and is broken": func(c *cluster) { c.EndWatches(); c.Drop() },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			p := c.add("a", a)
			c.SetBookmarks(10 * time.Millisecond)
			f := follow(t, c.config())
			f.Want("the listing", a+" active")
			f.untilHeard() // without a bookmark a watch proves nothing
			watches := c.Requests("watch")
			end(c)
			c.delete(p)
			c.add("b", b)
			f.Want("what changed meanwhile", b+" active")
			f.Until("another watch", func() bool { return c.Requests("watch") > watches })
			if got := c.Requests("list"); got != 1 {
				t.Errorf("%d listings, want 1", got)
			}
		})
	}
}

// Bookmarks move a watch's version on while nothing that it selects changes, so
// that what is forgotten meanwhile does not matter.
func TestBookmarksKeepAWatchFromExpiring(t *testing.T) {
	c := newCluster(t)
	c.add("a", a)
	c.SetBookmarks(10 * time.Millisecond)
	f := follow(t, c.config())
	f.Want("the listing", a+" active")
	noise := testfleet.WorkerPod(namespace, "noise", "qwen", "")
	for i := range 20 {
		noise.Labels["n"] = fmt.Sprint(i)
		c.PutPod(t, noise)
	}
	f.Until("a bookmark behind the changes", func() bool { return c.Bookmarked() == c.Version() })
	c.Compact()
	c.EndWatches()
	c.add("b", b)
	f.Want("a change behind it", a+" active", b+" active")
	if got := c.Requests("list"); got != 1 {
		t.Errorf("%d listings, want 1", got)
	}
}

// The API server ends each watch after a while, with a bookmark.
func TestAWatchsTimeIsUp(t *testing.T) {
	c := newCluster(t)
	c.add("a", a)
	f := follow(t, impatient(c.Kubeconfig(t, "")))
	f.Want("the listing", a+" active")
	f.Until("the next watch but one", func() bool { return c.Requests("watch") >= 3 })
	if got := c.Requests("list"); got != 1 || !f.Store.Connected() {
		t.Errorf("%d listings, want 1; connected %t", got, f.Store.Connected())
	}
}

// An API server that sends no bookmarks gives no proof that a watch works.
func TestAWatchThatBroughtNothingIsFollowedByAListing(t *testing.T) {
	c := newCluster(t)
	c.SetBookmarks(0)
	p := c.add("a", a)
	f := follow(t, impatient(c.Kubeconfig(t, "")))
	f.Want("the listing", a+" active")
	c.SetMute(true)
	c.delete(p)
	c.add("b", b)
	f.Want("the next listing", b+" active")
	if got := f.metric("pointsman_kubernetes_errors_total", "mute"); got < 1 {
		t.Error("the watch's muteness was not counted")
	}
}

func TestAForgottenVersionIsFollowedByAListing(t *testing.T) {
	c := newCluster(t)
	p := c.add("a", a)
	f := follow(t, c.config())
	f.Want("the listing", a+" active")
	f.Until("the watch", func() bool { return c.Requests("watch") == 1 })
	c.SetDelay(100 * time.Millisecond)
	c.Drop()
	c.delete(p)
	c.add("b", b)
	c.Compact()
	f.Want("the present fleet", b+" active")
	f.Until("being in step", f.Store.Connected)
	if got := f.metric("pointsman_kubernetes_lists_total", ""); got < 2 {
		t.Errorf("%v listings, want another one", got)
	}
}

// 410 on a watch that is open.
func TestAWatchThatExpiresIsNoOutage(t *testing.T) {
	c := newCluster(t)
	c.add("a", a)
	f := follow(t, c.config())
	f.Want("the listing", a+" active")
	f.Until("the watch", func() bool { return c.Requests("watch") == 1 })
	noise := testfleet.WorkerPod(namespace, "noise", "qwen", "")
	c.SetMute(true)
	c.PutPod(t, noise)
	c.SetMute(false)
	c.EndWatches()
	c.Compact()
	c.add("b", b)
	f.Want("the present fleet", a+" active", b+" active")
	if f.Log.Count("out of step") != 0 {
		t.Errorf("it was called an outage:\n%s", f.Log)
	}
}

func TestAnAPIServerThatIsDownAtTheStart(t *testing.T) {
	c := newCluster(t)
	c.add("a", a)
	c.Stop()
	f := follow(t, c.config())
	f.Until("the complaint", func() bool { return f.Log.Count("out of step") == 1 })
	if f.Store.Synced() || f.Store.Connected() {
		t.Error("in step with an API server that is down")
	}
	f.Until("several attempts", func() bool { return f.metric("pointsman_kubernetes_errors_total", "unreachable") >= 4 })
	if got := f.Log.Count("out of step"); got != 1 {
		t.Errorf("said %d times, want once:\n%s", got, f.Log)
	}
	c.Start(t)
	f.Want("the listing", a+" active")
}

func TestAnAPIServerThatIsDownLater(t *testing.T) {
	c := newCluster(t)
	p := c.add("a", a)
	f := follow(t, c.config())
	f.Want("the listing", a+" active")
	c.Stop()
	f.Until("noticing", func() bool { return !f.Store.Connected() })
	f.Want("the last known fleet", a+" active")
	c.delete(p)
	c.add("b", b)
	c.Start(t)
	f.Want("the present fleet", b+" active")
	f.Until("being in step", f.Store.Connected)
	if got := f.metric("pointsman_kubernetes_errors_total", "unreachable"); got < 1 {
		t.Error("the outage was not counted")
	}
}

func TestASlowAPIServer(t *testing.T) {
	c := newCluster(t)
	c.add("a", a)
	c.SetDelay(time.Hour)
	cfg := c.config()
	cfg.Timeout = 200 * time.Millisecond
	f := follow(t, cfg)
	f.Until("the complaint", func() bool { return f.Log.Count("no answer within 200ms") > 0 })
	c.SetDelay(50 * time.Millisecond)
	f.Want("the listing", a+" active")
}

// D3: a connection that stays open and carries nothing.
func TestD3ASilentConnectionIsNoticedAndMadeUpFor(t *testing.T) {
	c := newCluster(t)
	p := c.add("a", a)
	proxy := testfleet.StartProxy(t, strings.TrimPrefix(c.URL, "https://"))
	f := follow(t, impatient(c.Kubeconfig(t, proxy.Address)))
	f.Want("the listing", a+" active")
	f.Until("the watch", func() bool { return c.Requests("watch") > 0 })
	proxy.Freeze()
	c.delete(p)
	c.add("b", b)
	f.Until("noticing", func() bool { return !f.Store.Connected() })
	if got := f.Log.Count("no sign of life"); got != 1 {
		t.Errorf("the silence was said %d times, want once:\n%s", got, f.Log)
	}
	f.Want("the last known fleet", a+" active")
	proxy.Thaw()
	f.Want("the present fleet", b+" active")
}

func TestAMissingPermissionIsSaidClearlyAndWaitedFor(t *testing.T) {
	for _, verb := range []string{"list", "watch"} {
		t.Run(verb, func(t *testing.T) {
			c := newCluster(t)
			c.add("a", a)
			c.Deny(testfleet.KubePods, verb)
			f := follow(t, c.config())
			f.Until("several attempts", func() bool { return c.Requests(verb) >= 4 })
			want := verb + ` pods in namespace \"serving\" of ` + c.URL + ": not allowed: grant it with a Role"
			if got := f.Log.Count(want); got != 1 {
				t.Errorf("said %d times, want once: %s\n%s", got, want, f.Log)
			}
			if f.Log.Count("--verb=get,list,watch --resource=pods") == 0 || f.Log.Count("system:serviceaccount:test:test") == 0 {
				t.Errorf("neither the remedy nor the account is said:\n%s", f.Log)
			}
			if got := f.metric("pointsman_kubernetes_errors_total", "forbidden"); got < 3 {
				t.Errorf("%v refusals counted", got)
			}
			c.Allow(testfleet.KubePods, verb)
			f.Until("being in step", f.Store.Connected)
			c.add("b", b)
			f.Want("a change", a+" active", b+" active")
		})
	}
}

func TestCredentialsThatAreNotAccepted(t *testing.T) {
	c := newCluster(t)
	path := c.Kubeconfig(t, "")
	c.add("a", a)
	token := c.Token
	c.Stop()
	c.Token = "another"
	c.Start(t)
	f := follow(t, patient(path))
	f.Until("the complaint", func() bool { return f.Log.Count("the credentials are not accepted") == 1 })
	c.Stop()
	c.Token = token
	c.Start(t)
	f.Want("the listing", a+" active")
}

func TestAThousandPodsInPages(t *testing.T) {
	c := newCluster(t)
	var want []string
	for i := range 1000 {
		id := fmt.Sprintf("10.%d.%d.1:30000", i/250, i%250)
		c.add(fmt.Sprintf("w-%04d", i), id)
		want = append(want, id+" active")
	}
	slices.Sort(want)
	cfg := c.config()
	cfg.Page = 300
	f := follow(t, cfg)
	f.Want("all of them", want...)
	if got := c.Requests("list"); got != 4 {
		t.Errorf("%d pages, want 4", got)
	}
	c.Drop() // nothing may be lost or doubled by another listing
	c.Compact()
	c.add("one-more", "10.9.9.9:30000")
	f.Want("all and one more", append(want, "10.9.9.9:30000 active")...)
}

// A listing whose snapshot is forgotten between two pages is read anew, whole.
func TestAListingThatExpiresBetweenItsPages(t *testing.T) {
	c := newCluster(t)
	for i := range 10 {
		c.add(fmt.Sprintf("w-%d", i), fmt.Sprintf("10.0.0.%d:30000", i))
	}
	cfg := c.config()
	cfg.Page = 3
	c.SetDelay(50 * time.Millisecond)
	f := follow(t, cfg)
	f.Until("the first page", func() bool { return c.Unread() == 1 })
	c.Compact() // before the next page's request is looked at
	f.Until("the listing", func() bool { return len(f.Statuses()) == 10 })
	if f.Log.Count("out of step") != 0 {
		t.Errorf("it was called an outage:\n%s", f.Log)
	}
	if got := f.metric("pointsman_kubernetes_lists_total", ""); got != 1 {
		t.Errorf("%v listings, want 1", got)
	}
	if got := c.Requests("list"); got != 3 {
		t.Errorf("%d pages, want 3: the first, the refused second, and all at once", got)
	}
}
