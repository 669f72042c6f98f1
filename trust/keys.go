package trust

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of a key file.
const (
	minKey  = 16 // bytes of a key
	maxKeys = 4
	maxFile = 64 << 10
)

// keyInterval is how often a key file is looked at.
const keyInterval = time.Second

// Keys are shared secrets out of a file: one on each line that is neither empty
// nor begins with '#'. The first makes signatures, all of them check. To change
// the key: put the new one second everywhere, then first, then take the old one
// out. The file is read again when it changes; while it cannot be used, the last
// good keys stay.
type Keys struct {
	path string
	log  *slog.Logger

	cur     atomic.Pointer[ring]
	checked atomic.Int64 // unix nanoseconds of the last look at the file

	mu    sync.Mutex // held to reload
	stamp [3]stamp
	bad   string // the last complaint
}

// ring is the keys of one reading.
type ring struct{ macs []macs }

// OpenKeys reads the keys in the file at path.
func OpenKeys(path string, log *slog.Logger) (*Keys, error) {
	k := &Keys{path: path, log: log}
	if err := k.reload(); err != nil {
		return nil, err
	}
	return k, nil
}

// StaticKeys returns keys that are not in a file, for tests and tools.
func StaticKeys(keys ...[]byte) *Keys {
	k := &Keys{}
	k.cur.Store(ringOf(keys))
	return k
}

func ringOf(keys [][]byte) *ring {
	r := &ring{macs: make([]macs, len(keys))}
	for i, key := range keys {
		r.macs[i].key = key
	}
	return r
}

// ring returns the keys in force at now.
func (k *Keys) ring(now time.Time) *ring {
	last := k.checked.Load()
	if k.path != "" && now.UnixNano()-last >= int64(keyInterval) && k.checked.CompareAndSwap(last, now.UnixNano()) {
		k.refresh()
	}
	return k.cur.Load()
}

// refresh reloads the keys and says so when that fails, once until it changes.
func (k *Keys) refresh() {
	err := k.reload()
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.bad
	if k.bad = ""; err != nil {
		k.bad = err.Error()
	}
	if k.bad != "" && k.bad != was {
		k.log.Warn("key file unusable; the last good keys stay", slog.String("key_file", k.path), slog.Any("error", err))
	}
}

func (k *Keys) reload() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, err := stampsOf(k.path)
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	if k.cur.Load() != nil && now == k.stamp {
		return nil
	}
	raw, err := os.ReadFile(k.path)
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	keys, err := parseKeys(raw)
	if err != nil {
		return fmt.Errorf("key file %s: %w", k.path, err)
	}
	k.cur.Store(ringOf(keys))
	k.stamp = now
	return nil
}

var errNoKey = errors.New("no key in it: write one on a line, for instance the output of openssl rand -hex 32")

func parseKeys(raw []byte) ([][]byte, error) {
	if len(raw) > maxFile {
		return nil, fmt.Errorf("%d bytes: want at most %d", len(raw), maxFile)
	}
	var keys [][]byte
	for line := range bytes.Lines(raw) {
		line = bytes.TrimSpace(line)
		switch {
		case len(line) == 0 || line[0] == '#':
			continue
		case len(line) < minKey:
			return nil, fmt.Errorf("key %d has %d bytes: want at least %d", len(keys)+1, len(line), minKey)
		case len(keys) == maxKeys:
			return nil, fmt.Errorf("more than %d keys", maxKeys)
		}
		keys = append(keys, line)
	}
	if len(keys) == 0 {
		return nil, errNoKey
	}
	return keys, nil
}
