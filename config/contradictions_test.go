package config_test

import (
	"strings"
	"testing"

	"pointsman/config"
)

func TestReplicasThatWouldAskEachOtherInVainAreRefused(t *testing.T) {
	tests := []struct{ name, args, want string }{
		{"at no port", "--warm-peers epp:9090 --admin-token t --metrics-port 0", "--metrics-port 0"},
		{"without a token", "--warm-peers 127.0.0.1:9090,epp:9090", "--admin-token"},
		{"on one machine", "--warm-peers 127.0.0.1:9090,[::1]:9090", ""},
		{"with a token", "--warm-peers epp:9090 --admin-token t", ""},
		{"at a port out of range", "--warm-peers epp:99999 --admin-token t", "host:port"},
		{"at a port by name", "--warm-peers epp:metrics --admin-token t", "host:port"},
		{"nowhere", "--warm-peers :9090 --admin-token t", "host:port"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(t, config.EPP, nil, strings.Fields(tt.args)...)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want one that says %q", err, tt.want)
			}
		})
	}
}
