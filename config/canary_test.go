package config_test

import (
	"strings"
	"testing"

	"pointsman/breaker"
	"pointsman/config"
)

// Canaries where nobody sends them would leave pairs out for ever.
func TestCanariesNeedAForwarderThatPicks(t *testing.T) {
	fleet := []string{"--discovery-backend", "static", "--static-file", "x", "--pair-canary", "on-recovery"}
	for _, tt := range []struct {
		name    string
		program config.Program
		mode    []string
		ok      bool
	}{
		{"an endpoint picker", config.EPP, nil, false},
		{"a forwarder in direct mode", config.Forwarder, []string{"--router-mode", "direct"}, false},
		{"a forwarder in auto mode", config.Forwarder, []string{"--router-mode", "auto"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := parse(t, tt.program, nil, append(tt.mode, fleet...)...)
			switch {
			case tt.ok && (err != nil || c.Breaker.PairCanary != breaker.CanaryOnRecovery):
				t.Errorf("%v", err)
			case !tt.ok && (err == nil || !strings.Contains(err.Error(), "only a forwarder in --router-mode auto sends canaries")):
				t.Errorf("error = %v", err)
			}
		})
	}
}
