package config

import (
	"os"
	"strings"
	"testing"
)

// TestTheMappingIsDocumented: people read in docs/inferencepool.md what becomes of
// each plugin.
func TestTheMappingIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/inferencepool.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range pluginNames() {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/inferencepool.md does not name %s", name)
		}
	}
}
