package e2e

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pointsman/internal/stack"
)

// shellBlocks returns the lines of a page's ```sh blocks, continued lines joined
// and comments cut.
func shellBlocks(t *testing.T, page string) []string {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	inside, carry := false, ""
	for line := range strings.SplitSeq(string(raw), "\n") {
		switch {
		case strings.HasPrefix(line, "```"):
			inside, carry = line == "```sh", ""
			continue
		case !inside:
			continue
		}
		line, _, _ = strings.Cut(line, " # ")
		line = carry + strings.TrimSpace(line)
		if joined, more := strings.CutSuffix(line, "\\"); more {
			carry = joined
			continue
		}
		if carry = ""; line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestTheCommandsOfTheREADMERun runs each program of the README as it stands
// there, with the addresses of a fleet of this test, until it is ready. The make
// targets it names must exist.
func TestTheCommandsOfTheREADMERun(t *testing.T) {
	t.Parallel()
	s := sharedFleet(t, stack.OriginalDst)
	makefile, err := os.ReadFile(filepath.Join(theRig.root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	started := 0
	for i, line := range shellBlocks(t, filepath.Join(theRig.root, "README.md")) {
		words := strings.Fields(line)
		switch program := words[0]; {
		case program == "make":
			if !strings.Contains(string(makefile), "\n"+words[1]+":") {
				t.Errorf("the Makefile has no target %s", words[1])
			}
		case strings.HasPrefix(program, "bin/"):
			started++
			runUntilReady(t, s, i, words)
		default:
			t.Errorf("this test does not know how to run %q", line)
		}
	}
	if started < 2 {
		t.Errorf("only %d programs in the README", started)
	}
}

// runUntilReady runs the n-th command on an address of its own, waits until it
// says that it is ready, and ends it in order.
func runUntilReady(t *testing.T, s *stack.Stack, n int, words []string) {
	t.Helper()
	gateway, _, err := net.SplitHostPort(strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	host := gateway + "0" + string(rune('0'+n)) // the subnet's .100 to .109
	args := []string{"--host", host, "--drain-delay", "0"}
	for _, w := range words[1:] {
		args = append(args, strings.ReplaceAll(w, "127.0.0.1:2379", strings.TrimPrefix(s.Etcd.Endpoint, "http://")))
	}
	cmd := exec.Command(filepath.Join(theRig.bin, filepath.Base(words[0])), args...)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	port := map[string]string{"bin/epp": "9090", "bin/forwarder": "8000"}[words[0]]
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err = stack.Until(ctx, strings.Join(words, " "), func(ctx context.Context) error {
		_, look := stack.Get(ctx, http.DefaultClient, "http://"+host+":"+port+"/ready")
		return look
	})
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("%v\n%s", err, log.String())
	}
	if err = cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err = cmd.Wait(); err != nil {
		t.Errorf("%s: %v\n%s", words[0], err, log.String())
	}
}
