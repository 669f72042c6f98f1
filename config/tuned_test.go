package config

import (
	"reflect"
	"slices"
	"testing"
)

// tunable are the fields of Config whose rooms take new settings while running,
// by a call of Live.OnReload in internal/assemble or the programs.
var tunable = []string{"Admission", "Breaker", "ExtProc", "Forward", "Health", "Picker", "PDMode"}

// TestTunedRowsFillRoomsThatTakeThem: a row that is not marked "restart" must
// change nothing but what is handed on when the file changes.
func TestTunedRowsFillRoomsThatTakeThem(t *testing.T) {
	for _, row := range Default(Both).everyRow() {
		if !row.live {
			continue
		}
		c := Default(Both)
		rows := c.everyRow()
		s := rows[slices.IndexFunc(rows, func(s setting) bool { return s.name == row.name })]
		before := *c
		if !change(&s) {
			t.Errorf("%s: no other value found", s.name)
			continue
		}
		old, now := reflect.ValueOf(before), reflect.ValueOf(*c)
		for i := range old.NumField() {
			f := old.Type().Field(i)
			if f.IsExported() && !reflect.DeepEqual(old.Field(i).Interface(), now.Field(i).Interface()) && !slices.Contains(tunable, f.Name) {
				t.Errorf("%s fills Config.%s, which no reload hands on: mark the row restart, or hand it on and list it here", s.name, f.Name)
			}
		}
	}
}

// change sets s to another value than it has.
func change(s *setting) bool {
	was := s.value.get()
	for _, text := range []string{"1", "2", "7", "40", "700", "5000", "true", "false", "off", "/x", "tcp", "observe", "round-robin", "pre-dispatch", "short", "all", "reject", "policy", "local", "on-recovery", "tenant", "1,2,3"} {
		if err := s.value.set(text); err == nil && s.value.get() != was {
			return true
		}
	}
	return false
}
