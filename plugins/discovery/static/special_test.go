//go:build unix

package static

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestAPipeIsRefusedInsteadOfWaitedFor: opening one blocks until somebody writes,
// and nothing would follow the path any more.
func TestAPipeIsRefusedInsteadOfWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip("no named pipes here:", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := read(path)
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Error("a pipe was read")
		}
	case <-ctx.Done():
		t.Fatal("the source waits for a writer of the pipe")
	}
}
