package config

import (
	"slices"
	"testing"
)

// TestEverySettingIsListed: a setting of a group that --help and docs/flags.md do
// not know would be in neither.
func TestEverySettingIsListed(t *testing.T) {
	for _, s := range Default(Both).rows() {
		if !slices.Contains(groups, s.group) {
			t.Errorf("--%s is of the group %q, which is not listed", s.name, s.group)
		}
	}
}
