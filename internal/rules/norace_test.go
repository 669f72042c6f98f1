package rules_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Tests that say less under the race detector are run without it too: by make
// test-norace, whose list must name their packages and whose pattern their tests.
func TestWhatTheRaceDetectorHidesIsRunWithoutIt(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(makefile), "\nNORACE := ")
	list, _, _ = strings.Cut(list, "\n")
	var found []string
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "\nconst raceEnabled = false") {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		found = append(found, "./"+filepath.ToSlash(dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	if named := strings.Fields(list); !slices.Equal(named, found) {
		t.Errorf("make test-norace runs %q, but these packages ask whether the race detector is on: %q", named, found)
	}
}
