package config

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Timing of the watch. A file is looked at settle after a sign of change, and
// every pollInterval, since some file systems give no signs; it counts when two
// looks in a row see the same, so that one that is just being written is read
// whole.
const (
	settle       = 200 * time.Millisecond
	pollInterval = 5 * time.Second
)

// Run follows the file until ctx is done: when its content has changed, and at
// each message of ask (SIGHUP), everything is read anew. Without a file only ask
// counts. It returns nil.
//
// The directory is watched, not the file: editors and Kubernetes replace files,
// the latter by a symbolic link to a directory of the whole volume.
func (l *Live) Run(ctx context.Context, ask <-chan os.Signal) error {
	path := l.Current().File
	var changes <-chan fsnotify.Event
	var faults <-chan error
	if path != "" {
		w, err := fsnotify.NewWatcher()
		if err == nil {
			defer func() { _ = w.Close() }()
			err = w.Add(filepath.Dir(path))
			changes, faults = w.Events, w.Errors
		}
		if err != nil {
			l.log.LogAttrs(ctx, slog.LevelWarn, "no signs of changes of the configuration file, looking every few seconds",
				slog.Any("error", err))
		}
	}
	seen := l.Current().fileText // not what is there by now: it may have changed since
	var candidate []byte         // a new content that has been seen once
	soon := false
	look := time.NewTimer(pollInterval)
	defer look.Stop()
	for {
		select {
		case <-changes:
		case <-faults: //nolint:errcheck // missed signs: look
		case <-ask:
			seen, _ = read(path)
			_ = l.Reload(ctx) // it has logged what is wrong
			continue
		case <-look.C:
			text, err := read(path)
			soon = err == nil && !bytes.Equal(text, seen) && !bytes.Equal(text, candidate)
			switch {
			case err != nil || bytes.Equal(text, seen):
				candidate = nil // a file that is away is about to be replaced
			case soon:
				candidate = text
			default:
				seen, candidate = text, nil
				_ = l.Reload(ctx) // it has logged what is wrong
			}
			look.Reset(pollInterval)
			if soon {
				look.Reset(settle)
			}
			continue
		case <-ctx.Done():
			return nil
		}
		if !soon { // else a look is due, which a busy directory must not put off
			soon = true
			look.Reset(settle)
		}
	}
}

// errEmpty keeps a file that is just being written from meaning "all defaults".
var errEmpty = errors.New(`empty: the defaults are "{}"`)

func read(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err == nil && len(bytes.TrimSpace(text)) == 0 {
		return nil, errEmpty
	}
	return text, err
}
