package trust

import (
	"fmt"
	"os"
	"time"
)

// stamp tells whether a file has changed. Both fields of one file are compared, so
// that the swapped symbolic link of a mounted secret is a change too.
type stamp struct {
	modified time.Time
	size     int64
}

// stampsOf looks at files; "" is no file and never changes.
func stampsOf(names ...string) ([3]stamp, error) {
	var out [3]stamp
	for i, name := range names {
		if name == "" {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return out, fmt.Errorf("look at %s: %w", name, err)
		}
		out[i] = stamp{info.ModTime(), info.Size()}
	}
	return out, nil
}
