package rules_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// threats are the numbers of the fail-over contract, section 5, that
// docs/security.md answers for.
var threats = []int{1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 14, 15, 16, 17, 18}

// TestSecurityNamesRealTests keeps docs/security.md true: each threat has a row,
// and each row of a threat a test that is in the tree.
func TestSecurityNamesRealTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range securityFaults(string(page), testFuncs(t)) {
		t.Error(fault)
	}
	flags, err := os.ReadFile(filepath.Join(root, "docs", "flags.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range regexp.MustCompile("`(--[a-z][a-z0-9-]+)").FindAllStringSubmatch(string(page), -1) {
		if !strings.Contains(string(flags), "`"+flag[1]+"`") {
			t.Errorf("there is no flag %s", flag[1])
		}
	}
}

// TestSecurityFaultsAreFound keeps TestSecurityNamesRealTests able to fail.
func TestSecurityFaultsAreFound(t *testing.T) {
	exists := map[string]bool{"trust.TestA": true}
	var whole strings.Builder
	for _, n := range threats {
		fmt.Fprintf(&whole, "| S%d x | y | z | `trust.TestA` |\n", n)
	}
	if faults := securityFaults(whole.String(), exists); len(faults) != 0 {
		t.Errorf("a whole page has faults: %q", faults)
	}
	for row, want := range map[string]string{
		"| S2 x | y | z | `trust.TestB` |":                  "there is no test trust.TestB",
		"| S2 x | y | z | by review |":                      "names no test",
		"| S2 x | y | `trust.TestA` |":                      "3 cells",
		"| S2 x | y | z | `trust.TestA`, `trust.TestB` |":   "there is no test trust.TestB",
		"see `forward.FuzzNothing` for what is not a table": "there is no test forward.FuzzNothing",
	} {
		if faults := strings.Join(securityFaults(whole.String()+row+"\n", exists), "\n"); !strings.Contains(faults, want) {
			t.Errorf("%s: faults %q, want %q", row, faults, want)
		}
	}
	if faults := securityFaults("", exists); len(faults) != len(threats) {
		t.Errorf("an empty page has %d faults, want one for each of %d", len(faults), len(threats))
	}
}

// securityFaults returns what is wrong with the page when these tests exist.
func securityFaults(page string, exists map[string]bool) []string {
	var faults []string
	for _, m := range namedTest.FindAllStringSubmatch(page, -1) {
		if name := m[1] + "." + m[2]; !exists[name] {
			faults = append(faults, fmt.Sprintf("there is no test %s (want `directory.TestName`)", name))
		}
	}
	rows := map[string]int{}
	for line := range strings.SplitSeq(page, "\n") {
		inner, ok := strings.CutPrefix(line, "| S")
		if !ok {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(inner, " |"), " | ")
		number, _, _ := strings.Cut(cells[0], " ")
		rows[number]++
		if len(cells) != 4 {
			faults = append(faults, fmt.Sprintf("S%s has a row of %d cells, want 4", cells[0], len(cells)))
		}
		if !namedTest.MatchString(cells[len(cells)-1]) {
			faults = append(faults, fmt.Sprintf("S%s names no test", cells[0]))
		}
	}
	for _, n := range threats {
		if rows[fmt.Sprint(n)] == 0 {
			faults = append(faults, fmt.Sprintf("there is no row for S%d", n))
		}
	}
	return faults
}
