// Package static reads the fleet from a YAML file, for fleets without a
// discovery service. It implements fleet.Source.
//
// A file with everything in it that there is:
//
//	workers:
//	  - url: http://10.0.0.1:30000      # the only key that is required
//	    id: gpu-1                       # default: host:port of url
//	    model: Qwen/Qwen3-0.6B
//	    engine: vllm                    # default: sglang
//	    role: prefill                   # mixed (default), prefill, decode
//	    status: active                  # active (default), draining, dead
//	    protocol: vllm-mooncake         # of prefill and decode workers
//	    params: {bootstrap_addr: "http://10.0.0.1:8998"}
//	    block_size: 16                  # tokens; default: learned from events
//	    kv_events: tcp://10.0.0.1:5557  # default: none
//	    kv_replay: tcp://10.0.0.1:5558  # default: none
//	    dp_size: 2                      # ranks behind one URL; default: none
//	    transport: http                 # http (default), nats
//	    endpoint: 10.0.0.1:8000         # its forwarder, as gateways reach it
//	    ping: infera.ping.gpu-1         # NATS subject at which it answers; default: none
//
// The file is followed: a new version counts as soon as it is there, however it
// was put there (written in place, renamed over, or a Kubernetes ConfigMap whose
// symbolic link moves). Replace it by renaming; a file written in place is read
// once it has been left alone for a moment. A new version that has a fault
// anywhere changes nothing: the last good fleet stays, and the log says what is
// wrong. At the start there is no such fleet, so a fault then is final.
//
// # Concurrency
//
// A Source belongs to the goroutine that runs Watch.
package static

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"pointsman/fleet"
)

// Config says where the fleet is written down. Path is required.
type Config struct {
	// Path of the YAML file.
	Path string
	// Poll is how often the file is read without any sign of a change, for file
	// systems that give none. 0 means 5 s.
	Poll time.Duration
}

// DefaultConfig returns a Config that lacks only its Path.
func DefaultConfig() Config { return Config{Poll: 5 * time.Second} }

// Validate reports all faults of c at once.
func (c Config) Validate() error {
	var errs []error
	if c.Path == "" {
		errs = append(errs, errors.New("static: no file: give its path"))
	}
	if c.Poll < 0 {
		errs = append(errs, fmt.Errorf("static: poll interval %v is below 0: give 0 for the default", c.Poll))
	}
	return errors.Join(errs...)
}

const (
	// settle is how long a file that is being written is left alone.
	settle = 50 * time.Millisecond
	// maxFile is far above what a fleet's description takes.
	maxFile = 16 << 20
	// skipReason counts refused versions among a fleet's unusable records.
	skipReason = "static_file"
)

// Source follows one file.
type Source struct {
	cfg Config
	log *slog.Logger
}

// New returns a source for the file that cfg names. It does not read it yet.
func New(cfg Config, log *slog.Logger) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Poll == 0 {
		cfg.Poll = DefaultConfig().Poll
	}
	return &Source{cfg: cfg, log: log}, nil
}

// Watch implements [fleet.Source].
func (s *Source) Watch(ctx context.Context, feed *fleet.Feed) error {
	f := &follower{Source: s, feed: feed}
	if err := f.first(); err != nil {
		return err
	}
	signs := newSigns(s.cfg.Path)
	defer signs.close()
	poll := time.NewTicker(s.cfg.Poll)
	defer poll.Stop()
	settled := time.NewTimer(settle) // covers a change between reading and watching
	defer settled.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-signs.events():
			if !open {
				signs.close()
				continue
			}
			settled.Reset(settle)
		case err := <-signs.errors():
			s.log.LogAttrs(ctx, slog.LevelDebug, "a sign of change may have been missed", slog.Any("error", err))
			settled.Reset(settle)
		case <-settled.C:
			f.again(ctx)
		case <-poll.C:
			signs.retry()
			f.again(ctx)
		}
	}
}

// follower is the state of one Watch.
type follower struct {
	*Source
	feed *fleet.Feed
	seen []byte          // content of the last version looked at
	is   []*fleet.Worker // what seen says
	no   error           // or why it says nothing
	bad  string          // what is wrong at present; "" when the fleet is the file's
}

func (f *follower) first() error {
	content, err := read(f.cfg.Path)
	if err != nil {
		return err
	}
	workers, err := Parse(content)
	if err != nil {
		return fmt.Errorf("static fleet %s: %w", f.cfg.Path, err)
	}
	f.seen, f.is = content, workers
	f.feed.Replace(workers)
	return nil
}

// again looks at the file and says each fault once.
func (f *follower) again(ctx context.Context) {
	content, err := read(f.cfg.Path)
	if err == nil && bytes.Equal(content, f.seen) {
		f.unchanged(ctx)
		return
	}
	var workers []*fleet.Worker
	if err == nil {
		workers, err = Parse(content)
		f.seen, f.is, f.no = content, workers, err
	}
	if err != nil {
		f.refuse(ctx, err)
		return
	}
	f.bad = ""
	f.feed.Replace(workers)
	f.log.LogAttrs(ctx, slog.LevelInfo, "the static fleet has a new version",
		slog.String("path", f.cfg.Path), slog.Int("workers", len(workers)))
}

// unchanged settles the case that the version last looked at is (still, or
// again after it could not be read) the file's.
func (f *follower) unchanged(ctx context.Context) {
	if f.no != nil {
		f.refuse(ctx, f.no)
		return
	}
	f.bad = ""
	f.feed.Replace(f.is)
}

func (f *follower) refuse(ctx context.Context, err error) {
	f.feed.Lost()
	if f.bad == err.Error() {
		return
	}
	f.bad = err.Error()
	f.feed.Skip(skipReason)
	f.log.LogAttrs(ctx, slog.LevelWarn, "the static fleet's new version cannot be used; the last good one stays",
		slog.String("path", f.cfg.Path), slog.Any("error", err))
}

func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("static fleet: %w", err)
	}
	if !info.Mode().IsRegular() { // opening a pipe would wait for its writer
		return nil, fmt.Errorf("static fleet %s: not a regular file", path)
	}
	file, err := os.Open(path) //nolint:gosec // the path is the operator's
	if err != nil {
		return nil, fmt.Errorf("static fleet: %w", err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("static fleet: %w", err)
	}
	if len(content) > maxFile {
		return nil, fmt.Errorf("static fleet %s: more than %d MiB", path, maxFile>>20)
	}
	return content, nil
}

// signs are the file system's hints that the file may have changed. They come
// from its directory, since a file that is replaced takes its watch along.
type signs struct {
	dir     string
	watcher *fsnotify.Watcher // nil when the system gives no hints
}

func newSigns(path string) *signs {
	s := &signs{dir: filepath.Dir(path)}
	s.retry()
	return s
}

func (s *signs) retry() {
	if s.watcher != nil {
		return
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return // polling goes on
	}
	if err := w.Add(s.dir); err != nil {
		_ = w.Close()
		return
	}
	s.watcher = w
}

func (s *signs) events() <-chan fsnotify.Event {
	if s.watcher == nil {
		return nil
	}
	return s.watcher.Events
}

func (s *signs) errors() <-chan error {
	if s.watcher == nil {
		return nil
	}
	return s.watcher.Errors
}

func (s *signs) close() {
	if s.watcher != nil {
		_ = s.watcher.Close()
		s.watcher = nil
	}
}
