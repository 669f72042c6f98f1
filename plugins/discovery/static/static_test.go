package static

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type following struct {
	*testfleet.Following
	t    *testing.T
	path string
}

// follow starts a source for path and returns once its first fleet is there.
func follow(t *testing.T, path string, poll time.Duration) *following {
	t.Helper()
	f, _ := testfleet.Follow(t, func(log *testkit.Log) (*Source, error) {
		return New(Config{Path: path, Poll: poll}, log.Logger())
	})
	f.Until("the first fleet", f.Store.Synced)
	return &following{Following: f, t: t, path: path}
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
	f.Want("the first version", "a:1")
	replace(t, path, two)
	f.Want("a renamed version", "a:1", "b:1")
	write(t, path, one)
	f.Want("a version written in place", "a:1")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.Until("the loss", func() bool { return !f.Store.Connected() })
	f.Want("the last known fleet", "a:1")
	write(t, path, two)
	f.Want("a new file", "a:1", "b:1")
	f.Until("being in step", f.Store.Connected)
}

func TestABadVersionChangesNothingAndIsSaidOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	write(t, path, two)
	f := follow(t, path, 5*time.Millisecond)
	replace(t, path, bad)
	f.Until("the complaint", func() bool { return f.Log.Count("did you mean") == 1 })
	f.Until("the loss", func() bool { return !f.Store.Connected() })
	fresh, _ := f.Store.Staleness(time.Now())
	f.Until("a few polls", func() bool { age, _ := f.Store.Staleness(time.Now()); return age > fresh+50*time.Millisecond })
	f.Want("the last good fleet", "a:1", "b:1")
	if n := f.Store.Skipped()[skipReason]; n != 1 || f.Log.Count("cannot be used") != 1 {
		t.Errorf("counted %d times, said %d times", n, f.Log.Count("cannot be used"))
	}
	replace(t, path, one)
	f.Want("the next good version", "a:1")
	f.Until("being in step", f.Store.Connected)
	replace(t, path, bad)
	f.Until("the same complaint about a new version", func() bool { return f.Store.Skipped()[skipReason] == 2 })
	replace(t, path, one)
	f.Until("being in step again", f.Store.Connected)
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
	f.Want("the first version", "a:1")
	version("..v2", two)
	link("..v2", "..data_tmp")
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	f.Want("the second version", "a:1", "b:1")
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
	f.Want("the new version", "a:1", "b:1")
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
