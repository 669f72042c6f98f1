package rules_test

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
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

// failoverTables are the tables of the page that have a row for each argument and each
// code of fail-over.
const failoverTables, failoverEnd = "### Detecting\n", "### Public reports"

// TestEachFailoverArgumentIsInATestsName: who looks for the proof of a flag or of an
// error's code finds it by that word, in the name of a test or of one of its cases.
func TestEachFailoverArgumentIsInATestsName(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "parity.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rows, begins := strings.Cut(string(page), failoverTables)
	rows, _, ends := strings.Cut(rows, failoverEnd)
	if !begins || !ends {
		t.Fatal("the tables of fail-over are not where they were")
	}
	cases := testCases(t)
	for _, fault := range unnamedArguments(rows, func(test, argument string) bool { return carries(cases[test], test, argument) }) {
		t.Error(fault)
	}
}

// TestArgumentsWithoutATestAreFound keeps TestEachFailoverArgumentIsInATestsName able
// to fail.
func TestArgumentsWithoutATestAreFound(t *testing.T) {
	cases := []string{"--ttft-timeout, no head", "retry"}
	carried := func(test, argument string) bool { return carries(cases, test, argument) }
	for row, want := range map[string]int{
		"| `--max-attempts` | x | `forward.TestMaxAttemptsBoundsAll` |":                   0,
		"| `--busy-ttl-ms`, `-rise` | x | `picker.TestBusyTTLOfAWorker` |":                1,
		"| `--ttft-timeout` (`LLB_X`) | x | `plugins.TestStalls` |":                       0,
		"| `first_token_timeout` | x | `plugins.TestStalls` |":                            1,
		"| departed workers | x | `picker.TestADepartedWorkersSeriesAreGone` |":           0,
		"| `a_code` | x | `forward.TestOther`, `forward.TestACodeIsTold` |":               0,
		"| `--retry-safety` | x | `forward.TestRetries`. not built yet: `retry-safety` |": 1,
	} {
		if got := unnamedArguments(row, carried); len(got) != want {
			t.Errorf("%s: %v, want %d", row, got, want)
		}
	}
}

var (
	argument = regexp.MustCompile("`([^`]+)`")
	aliases  = regexp.MustCompile(`\([^)]*\)`)
)

// unnamedArguments returns the arguments of the rows that none of their tests carries.
func unnamedArguments(rows string, carried func(test, argument string) bool) (faults []string) {
	for line := range strings.SplitSeq(rows, "\n") {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 {
			continue
		}
		tests := namedTest.FindAllStringSubmatch(cells[2], -1)
		for _, m := range argument.FindAllStringSubmatch(aliases.ReplaceAllString(cells[0], ""), -1) {
			found := false
			for _, test := range tests {
				found = found || carried(test[1]+"."+test[2], m[1])
			}
			if !found && len(tests) > 0 {
				faults = append(faults, fmt.Sprintf("no test of %s has it in its name or in that of a case", m[1]))
			}
		}
	}
	return faults
}

// carries reports whether the test, or a case of its file, is named after the argument.
func carries(cases []string, test, argument string) bool {
	word := argument
	for _, unit := range []string{"-s", "-ms"} { // of the value
		word = strings.TrimSuffix(word, unit)
	}
	letters := func(s string) string {
		return strings.Map(func(r rune) rune {
			if r == '-' || r == '_' {
				return -1
			}
			return r
		}, strings.ToLower(s))
	}
	if strings.Contains(letters(test), letters(word)) {
		return true
	}
	for _, name := range cases {
		if name == argument || strings.HasPrefix(name, argument+",") || strings.HasPrefix(name, argument+" ") {
			return true
		}
	}
	return false
}

// testCases returns the texts of the file that each test is in, by directory.Name.
func testCases(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, file := range goFiles(t) {
		if !strings.HasSuffix(file.path, "_test.go") {
			continue
		}
		var texts []string
		ast.Inspect(file.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					texts = append(texts, text)
				}
			}
			return true
		})
		dir := filepath.ToSlash(filepath.Dir(file.path))
		for _, decl := range file.ast.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok {
				found[dir+"."+f.Name.Name] = texts
			}
		}
	}
	return found
}
