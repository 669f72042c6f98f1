package rules_test

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// answers are what a row of docs/parity.md may say instead of naming a test.
var answers = []string{"not built yet", "untested:", "partly:", "outside:"}

// namedTest is how the page names a test: `directory.TestName`.
var namedTest = regexp.MustCompile("`([a-z0-9/]*)\\.?((?:Test|Fuzz)[A-Z]\\w*)`")

// TestParityNamesRealTests keeps docs/parity.md true: every test that it names
// is in the tree, every row names one or says what there is none for, and no
// defect of the notes is left out.
func TestParityNamesRealTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "parity.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range parityFaults(string(page), testFuncs(t)) {
		t.Error(fault)
	}
}

// TestParityFaultsAreFound keeps TestParityNamesRealTests able to fail.
func TestParityFaultsAreFound(t *testing.T) {
	exists := map[string]bool{"breaker.TestCircuit": true}
	const head = "| asked | here | held by |\n|---|---|---|\n"
	tests := []struct{ name, row, want string }{
		{"a test that exists", "| a | b | `breaker.TestCircuit` |", ""},
		{"a test of another package", "| a | b | `picker.TestCircuit` |", "picker.TestCircuit"},
		{"a test without its package", "| a | b | `TestCircuit` |", "TestCircuit"},
		{"no answer", "| a | b | yes |", "names no test"},
		{"an honest answer", "| a | b | not built yet: probes |", ""},
		{"a cell too many", "| a | b | c | not built yet |", "4 cells"},
		{"a name outside a table", "see `forward.FuzzNothing`", "forward.FuzzNothing"},
	}
	for _, tt := range tests {
		faults := strings.Join(parityFaults(head+tt.row+"\n"+allDefects(), exists), "\n")
		if (faults == "") != (tt.want == "") || !strings.Contains(faults, tt.want) {
			t.Errorf("%s: faults %q, want %q", tt.name, faults, tt.want)
		}
	}
	if faults := parityFaults(head, exists); len(faults) != len(defectIDs()) {
		t.Errorf("a page without defects has %d faults, want one for each of %d", len(faults), len(defectIDs()))
	}
}

// allDefects is a table of all defects, as the page should have it.
func allDefects() string {
	var page strings.Builder
	for _, id := range defectIDs() {
		fmt.Fprintf(&page, "| %s x | y | outside: z |\n", id)
	}
	return page.String()
}

// defectIDs are the rows of the notes on Infera's defects.
func defectIDs() []string {
	var ids []string
	for _, series := range []struct {
		letter string
		last   int
	}{{"D", 13}, {"N", 18}, {"K", 18}, {"P", 25}, {"H", 12}, {"E", 12}} {
		for n := range series.last {
			ids = append(ids, fmt.Sprint(series.letter, n+1))
		}
	}
	return ids
}

// parityFaults returns what is wrong with the page when these tests exist.
func parityFaults(page string, exists map[string]bool) []string {
	var faults []string
	rows := map[string]int{} // by first word
	for _, m := range namedTest.FindAllStringSubmatch(page, -1) {
		if name := m[1] + "." + m[2]; !exists[name] {
			faults = append(faults, fmt.Sprintf("there is no test %s (want `directory.TestName`)", name))
		}
	}
	for line := range strings.SplitSeq(page, "\n") {
		inner, ok := strings.CutPrefix(line, "| ")
		if !ok {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(inner, " |"), " | ")
		last := cells[len(cells)-1]
		if last == "held by" {
			continue
		}
		word, _, _ := strings.Cut(cells[0], " ")
		rows[word]++
		if len(cells) != 3 {
			faults = append(faults, fmt.Sprintf("%q has %d cells, want 3", cells[0], len(cells)))
		}
		if !namedTest.MatchString(last) && !containsAny(last, answers) {
			faults = append(faults, fmt.Sprintf("%q names no test and does not say why", cells[0]))
		}
	}
	for _, id := range defectIDs() {
		if rows[id] != 1 {
			faults = append(faults, fmt.Sprintf("defect %s has %d rows, want one", id, rows[id]))
		}
	}
	return faults
}

func containsAny(s string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

// testFuncs returns the tests and fuzz targets of the tree as directory.Name.
func testFuncs(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, file := range goFiles(t) {
		if !strings.HasSuffix(file.path, "_test.go") {
			continue
		}
		dir := filepath.ToSlash(filepath.Dir(file.path))
		for _, decl := range file.ast.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && f.Recv == nil && (strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz")) {
				found[dir+"."+f.Name.Name] = true
			}
		}
	}
	return found
}
