package config_test

import (
	"os"
	"strings"
	"testing"

	"pointsman/config"
)

// TestTheFilesOfTheFailoverPageAreTaken by both programs, as they stand.
func TestTheFilesOfTheFailoverPageAreTaken(t *testing.T) {
	page, err := os.ReadFile("../docs/failover.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for block := range strings.SplitSeq(string(page), "```yaml\n") {
		text, _, fenced := strings.Cut(block, "\n```\n")
		if n++; n == 1 || !fenced {
			continue // what stands before the first block
		}
		for _, prog := range []config.Program{config.EPP, config.Forwarder} {
			c, err := parse(t, prog, nil, "--config", write(t, text), "--pool-name", "chat")
			if err != nil {
				t.Errorf("%s refuses\n%s\n%v", prog, text, err)
			} else if w := c.Warnings(); len(w) > 0 {
				t.Errorf("%s warns of\n%s\n%q", prog, text, w)
			}
		}
	}
	if n < 3 {
		t.Errorf("%d blocks of YAML, want those of two sections", n-1)
	}
}
