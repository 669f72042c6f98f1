package rules_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// guides are the pages for operators that are written by hand and name settings.
var guides = []string{"install", "sizing", "troubleshooting", "headers", "migration"}

// TestTheGuidesNameWhatExists: every flag, series and page that the guides name
// is there, so that nobody is sent after what was renamed.
func TestTheGuidesNameWhatExists(t *testing.T) {
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	flags, series := read("docs/flags.md"), read("docs/metrics.md")
	// Of helm, docker and bin/pointsman, and llm-d's that has no part here.
	others := []string{"--set", "--platform", "--push", "--model", "--worker", "--epp", "--health", "--ha-enable-leader-election"}
	for _, name := range guides {
		page := read("docs/" + name + ".md")
		for _, flag := range regexp.MustCompile(`(?:^|[ `+"`"+`])(--[a-z][a-z0-9-]+)`).FindAllStringSubmatch(page, -1) {
			known := strings.Contains(flags, "`"+flag[1]+"`") || strings.Contains(flags, "`--"+strings.TrimPrefix(flag[1], "--no-")+"`")
			if !known && !slices.Contains(others, flag[1]) {
				t.Errorf("%s: there is no flag %s", name, flag[1])
			}
		}
		for _, m := range regexp.MustCompile("`((?:infera|pointsman)_[a-z_]+[a-z])[`{]").FindAllStringSubmatch(page, -1) {
			// The tokenizers' are there only when files are given.
			if !strings.Contains(series, "`"+m[1]+"`") && !strings.HasPrefix(m[1], "pointsman_tokenizer_") {
				t.Errorf("%s: there is no series %s", name, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`).FindAllStringSubmatch(page, -1) {
			read(filepath.Join("docs", m[1]))
		}
		for _, m := range regexp.MustCompile("`(manifests/[a-z/.-]+|bin/[a-z]+)`?").FindAllStringSubmatch(page, -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil && !strings.HasPrefix(m[1], "bin/") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
