package bench

import (
	"bufio"
	"context"
	_ "embed" // for the script
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

//go:embed tokens_reference.py
var referenceScript string

// tokenReference is a Python process that encodes on demand.
type tokenReference struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	dir string
}

type tokenAnswer struct {
	took time.Duration
	ids  int
	sum  int
}

func startTokenReference(ctx context.Context, python, tokenizer string, texts []tokenText) (*tokenReference, error) {
	dir, err := os.MkdirTemp("", "bench-tokens")
	if err != nil {
		return nil, err
	}
	args := []string{"-c", referenceScript, tokenizer}
	for i, text := range texts {
		name := filepath.Join(dir, strconv.Itoa(i))
		if err = os.WriteFile(name, text.text, 0o600); err != nil {
			return nil, err
		}
		args = append(args, name)
	}
	r := &tokenReference{cmd: exec.CommandContext(ctx, python, args...), dir: dir} //nolint:gosec // the venv's python
	r.cmd.Env = append(os.Environ(), "TOKENIZERS_PARALLELISM=false")
	r.cmd.Stderr = os.Stderr
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.out = bufio.NewReader(out)
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("reference: %w", err)
	}
	if _, err := r.out.ReadString('\n'); err != nil {
		r.stop()
		return nil, fmt.Errorf("reference did not start: %w", err)
	}
	return r, nil
}

func (r *tokenReference) encode(number int, cold bool) (tokenAnswer, error) {
	how := "warm"
	if cold {
		how = "cold"
	}
	var a tokenAnswer
	if _, err := fmt.Fprintln(r.in, how, number); err != nil {
		return a, fmt.Errorf("reference: %w", err)
	}
	line, err := r.out.ReadString('\n')
	if err != nil {
		return a, fmt.Errorf("reference: %w", err)
	}
	var seconds float64
	if _, err := fmt.Sscan(line, &seconds, &a.ids, &a.sum); err != nil {
		return a, fmt.Errorf("reference answered %q: %w", line, err)
	}
	a.took = time.Duration(seconds * float64(time.Second))
	return a, nil
}

func (r *tokenReference) stop() {
	_ = r.in.Close()
	_ = r.cmd.Wait()
	_ = os.RemoveAll(r.dir)
}
