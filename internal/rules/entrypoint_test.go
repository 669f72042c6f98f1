package rules_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// entrypoint is the program that takes the operator's command lines in the image.
const entrypoint = "./manifests/image/python3"

// built is the entry point, compiled once.
var built = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "entrypoint-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "python3")
	build := exec.Command("go", "build", "-o", file, entrypoint)
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(file)
})

// printer is a program that shows who it is, whether it took the entry point's place
// (its process is the one that was started), and what it got.
const printer = "#!/bin/sh\nprintf '%s\\n' \"$0\" \"$$\" \"${FROM_POD-}\" \"$@\"\nexit 7\n"

// install puts the entry point and the named programs into directories of their own
// and returns them.
func install(t *testing.T, beside, onPath []string) (image, path string) {
	t.Helper()
	program, err := built()
	if err != nil {
		t.Fatal(err)
	}
	image, path = t.TempDir(), t.TempDir()
	put := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(image, "python3"), string(program))
	for _, name := range beside {
		put(filepath.Join(image, name), printer)
	}
	for _, name := range onPath {
		put(filepath.Join(path, name), printer)
	}
	return image, path
}

// start runs the entry point and returns its exit code and output.
func start(t *testing.T, image, path string, args ...string) (code, pid int, out, errs string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(image, "python3"), args...)
	cmd.Env = []string{"PATH=" + path, "FROM_POD=demo-0"}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), cmd.Process.Pid, stdout.String(), stderr.String()
}

func TestTheEntrypointBecomesTheProgram(t *testing.T) {
	both := []string{"epp", "forwarder"}
	odd := []string{"--host", "0.0.0.0", "--router-tokenizer-path", "/models/a b", "", "*", "$HOME", "-m", "infera.gaie", `"q"`}
	for name, tt := range map[string]struct {
		module, program string
		beside, onPath  []string
		fromPath        bool
	}{
		"the endpoint picker":         {"infera.gaie", "epp", both, nil, false},
		"the sidecar":                 {"infera.server", "forwarder", both, nil, false},
		"beside before PATH":          {"infera.server", "forwarder", both, both, false},
		"PATH when not beside":        {"infera.server", "forwarder", nil, both, true},
		"PATH when only the other is": {"infera.gaie", "epp", []string{"forwarder"}, both, true},
	} {
		t.Run(name, func(t *testing.T) {
			image, path := install(t, tt.beside, tt.onPath)
			dir := image
			if tt.fromPath {
				dir = path
			}
			for _, args := range [][]string{nil, odd} {
				code, pid, out, errs := start(t, image, path, append([]string{"-m", tt.module}, args...)...)
				want := append([]string{filepath.Join(dir, tt.program), strconv.Itoa(pid), "demo-0"}, args...)
				if got := strings.Join(want, "\n") + "\n"; out != got || errs != "" || code != 7 {
					t.Errorf("exit %d, %q, stderr %q; want 7, %q", code, out, errs, got)
				}
			}
		})
	}
}

func TestTheEntrypointRefusesEverythingElse(t *testing.T) {
	image, path := install(t, []string{"epp", "forwarder", "infera.gaie"}, nil)
	for _, args := range [][]string{
		nil,
		{"-m"},
		{"infera.gaie"},
		{"-m infera.gaie"},
		{"-m infera.gaie", ""},
		{"-m", "infera.engine.vllm", "--port", "30000"},
		{"-m", "infera.gaie.other"},
		{"-m", "infera.*"},
		{"-u", "-m", "infera.server"},
		{"-c", "print(1)"},
		{"--version"},
	} {
		code, _, out, errs := start(t, image, path, args...)
		if code != 64 || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "no Python") || !strings.Contains(errs, strings.Join(args, " ")) {
			t.Errorf("%q: exit %d, %q, stderr %q; want one line that says why", args, code, out, errs)
		}
	}
}

func TestTheEntrypointSaysWhatIsMissing(t *testing.T) {
	image, path := install(t, []string{"forwarder"}, nil)
	if code, _, out, errs := start(t, image, path, "-m", "infera.gaie"); code != 127 || out != "" || !strings.Contains(errs, "no program epp") {
		t.Errorf("exit %d, %q, stderr %q; want 127 and the missing program's name", code, out, errs)
	}
}
