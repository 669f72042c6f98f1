// Command python3 stands in the image where Infera's has its Python: the operator
// of an Infera fleet starts the endpoint picker and the sidecar as modules, and
// need not know that they are these programs. It takes those two command lines
// and no other, and becomes the program: same process, same environment. It is
// not a script, because the image has no shell.
//
// # Concurrency
//
// Single-threaded.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Exit codes, as shells and sysexits have them.
const (
	exitUsage   = 64
	exitMissing = 127
)

func main() {
	os.Exit(run(os.Args, os.Stderr))
}

// run returns only when there is nothing that it could become.
func run(args []string, errs io.Writer) int {
	var program string
	if len(args) > 2 && args[1] == "-m" {
		// Infera deploy/operator/internal/controller/gaie.go
		program = map[string]string{"infera.gaie": "epp", "infera.server": "forwarder"}[args[2]]
	}
	if program == "" {
		_, _ = fmt.Fprintf(errs, "python3: this image has no Python: it runs \"-m infera.gaie\" and \"-m infera.server\", not %q; "+
			"workers (infera.engine.*) need the image of their engine\n", strings.Join(args[1:], " "))
		return exitUsage
	}
	path, err := find(args[0], program)
	if err != nil {
		_, _ = fmt.Fprintf(errs, "python3: no program %s beside %s or in PATH\n", program, args[0])
		return exitMissing
	}
	err = syscall.Exec(path, append([]string{path}, args[3:]...), os.Environ()) //nolint:gosec // one of two names
	_, _ = fmt.Fprintf(errs, "python3: %s: %v\n", path, err)
	return exitMissing
}

// find returns the program beside this one, else the one in PATH.
func find(self, program string) (string, error) {
	if own, err := os.Executable(); err == nil {
		self = own
	}
	if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), program)); err == nil {
		return path, nil
	}
	return exec.LookPath(program)
}
