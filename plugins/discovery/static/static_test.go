package static

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pointsman/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logged is what a source has said.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), what)
}

type following struct {
	t     *testing.T
	path  string
	store *fleet.Store
	log   *logged
}

// follow starts a source for path and returns once its first fleet is there.
func follow(t *testing.T, path string, poll time.Duration) *following {
	t.Helper()
	f := &following{t: t, path: path, store: new(fleet.Store), log: new(logged)}
	src, err := New(Config{Path: path, Poll: poll}, slog.New(slog.NewTextHandler(f.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.store.Run(ctx, src) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
	f.until("the first fleet", f.store.Synced)
	return f
}

// until waits for what only time can bring, looking often.
func (f *following) until(what string, done func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("waited in vain for %s; fleet %v, log:\n%s", what, f.ids(), f.log.buf.String())
		}
	}
}

func (f *following) ids() []string {
	var out []string
	for _, w := range f.store.Snapshot().Workers {
		out = append(out, w.ID)
	}
	return out
}

func (f *following) want(what string, ids ...string) {
	f.t.Helper()
	f.until(what, func() bool { return slices.Equal(f.ids(), ids) })
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// replace puts a new version in place at once, as careful writers do.
func replace(t *testing.T, path, content string) {
	t.Helper()
	write(t, path+".new", content)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

const (
	one = "workers: [{url: 'a:1'}]"
	two = "workers: [{url: 'a:1'}, {url: 'b:1'}]"
	bad = "workers: [{url: 'a:1', modell: m}]"
)

// An hour between polls shows that the file system's signs suffice.
func TestTheFileIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	write(t, path, one)
	f := follow(t, path, time.Hour)
	f.want("the first version", "a:1")
	replace(t, path, two)
	f.want("a renamed version", "a:1", "b:1")
	write(t, path, one)
	f.want("a version written in place", "a:1")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.until("the loss", func() bool { return !f.store.Connected() })
	f.want("the last known fleet", "a:1")
	write(t, path, two)
	f.want("a new file", "a:1", "b:1")
	f.until("being in step", f.store.Connected)
}

func TestABadVersionChangesNothingAndIsSaidOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	write(t, path, two)
	f := follow(t, path, 5*time.Millisecond)
	replace(t, path, bad)
	f.until("the complaint", func() bool { return f.log.count("did you mean") == 1 })
	f.until("the loss", func() bool { return !f.store.Connected() })
	fresh, _ := f.store.Staleness(time.Now())
	f.until("a few polls", func() bool { age, _ := f.store.Staleness(time.Now()); return age > fresh+50*time.Millisecond })
	f.want("the last good fleet", "a:1", "b:1")
	if n := f.store.Skipped()[skipReason]; n != 1 || f.log.count("cannot be used") != 1 {
		t.Errorf("counted %d times, said %d times", n, f.log.count("cannot be used"))
	}
	replace(t, path, one)
	f.want("the next good version", "a:1")
	f.until("being in step", f.store.Connected)
	replace(t, path, bad)
	f.until("the same complaint about a new version", func() bool { return f.store.Skipped()[skipReason] == 2 })
	replace(t, path, one)
	f.until("being in step again", f.store.Connected)
}

// Kubernetes swaps a directory's symbolic link; the file's own name stays.
func TestAConfigMapIsFollowed(t *testing.T) {
	dir := t.TempDir()
	version := func(name, content string) {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "fleet.yaml"), content)
	}
	link := func(target, name string) {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	version("..v1", one)
	link("..v1", "..data")
	link("..data/fleet.yaml", "fleet.yaml")
	f := follow(t, filepath.Join(dir, "fleet.yaml"), time.Hour)
	f.want("the first version", "a:1")
	version("..v2", two)
	link("..v2", "..data_tmp")
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	f.want("the second version", "a:1", "b:1")
}

// A link into another directory gives no sign in the file's own.
func TestPollingFindsWhatGivesNoSign(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	write(t, filepath.Join(other, "real.yaml"), one)
	if err := os.Symlink(filepath.Join(other, "real.yaml"), filepath.Join(dir, "fleet.yaml")); err != nil {
		t.Fatal(err)
	}
	f := follow(t, filepath.Join(dir, "fleet.yaml"), 5*time.Millisecond)
	write(t, filepath.Join(other, "real.yaml"), two)
	f.want("the new version", "a:1", "b:1")
}

func TestAFaultAtTheStartIsFinal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	for name, prepare := range map[string]func(){
		"no file":   func() {},
		"a mistake": func() { write(t, path, bad) },
		"too large": func() { write(t, path, strings.Repeat("#", maxFile+1)) },
	} {
		t.Run(name, func(t *testing.T) {
			prepare()
			src, err := New(Config{Path: path}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			store := new(fleet.Store)
			if err := store.Run(t.Context(), src); err == nil || !strings.Contains(err.Error(), "fleet.yaml") {
				t.Errorf("error %v, want one that names the file", err)
			}
			if store.Synced() {
				t.Error("a fleet all the same")
			}
		})
	}
}

func TestConfig(t *testing.T) {
	if _, err := New(Config{Poll: -1}, nil); err == nil || !strings.Contains(err.Error(), "path") || !strings.Contains(err.Error(), "-1ns") {
		t.Errorf("error %v, want both faults", err)
	}
	cfg := DefaultConfig()
	cfg.Path = "x"
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}
