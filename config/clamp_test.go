package config

import (
	"testing"
	"time"
)

// TestClampTakesTheNearestBound holds for every kind of range.
func TestClampTakesTheNearestBound(t *testing.T) {
	var n int
	var d, ms time.Duration
	var f float64
	tests := []struct {
		value         value
		text          string
		want          string
		clamped, fail bool
	}{
		{intValue(&n, 0, 3), "9", "3", true, false},
		{intValue(&n, 0, 3), "-9", "0", true, false},
		{intValue(&n, 0, 3), "2", "2", false, false},
		{intValue(&n, 0, 3), "x", "", false, true},
		{seconds(&d, time.Second, time.Minute), "2m", "60", true, false},
		{millis(&ms, time.Second, time.Minute), "1", "1000", true, false},
		{floatValue(&f, 0, 1), "1.5", "1", true, false},
	}
	for _, tt := range tests {
		s := setting{value: tt.value, clamp: true}
		clamped, err := s.set(tt.text)
		if clamped != tt.clamped || (err != nil) != tt.fail || err == nil && s.value.get() != tt.want {
			t.Errorf("%s: %s, clamped %v, error %v", tt.text, s.value.get(), clamped, err)
		}
		s.clamp = false
		if _, err := s.set(tt.text); (err != nil) != (tt.fail || tt.clamped) {
			t.Errorf("%s without clamp: error %v", tt.text, err)
		}
	}
}

func TestUnitsOfLoxiLBsNames(t *testing.T) {
	tests := []struct{ name, kind, text, want string }{
		{"LLB_PD_MAX_PARK_SEC", "ms", "30", "30000"},
		{"LLB_PD_MAX_PARK_SEC", "ms", "30s", "30s"},
		{"LLB_FC_WARMUP_MS", "seconds", "1500", "1.5"},
		{"probeTimeout", "seconds", "2", "2"},
		{"connect-timeout-ms", "ms", "500", "500"},
		{"LLB_PD_MAX_PARK_SEC", "int", "30", "30"},
	}
	for _, tt := range tests {
		if got := inUnit(tt.name, tt.kind, tt.text); got != tt.want {
			t.Errorf("%s of %s: %q, want %q", tt.text, tt.name, got, tt.want)
		}
	}
}
