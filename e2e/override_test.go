package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

// TestEnvoyHidesBodiesWhenItIsAllowedTo shows when Envoy heeds a mode_override:
// behind one that does, the chunks of an answer are no messages to the EPP, and the
// forwarder's report ends the request; elsewhere they pass as ever.
func TestEnvoyHidesBodiesWhenItIsAllowedTo(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		request, response string
		allowed, asked    bool
		hidden            bool
	}{
		{"BUFFERED", "STREAMED", true, true, true},
		{"BUFFERED", "BUFFERED", true, true, true},
		{"STREAMED", "STREAMED", true, true, true},
		{"BUFFERED", "STREAMED", false, true, false},
		{"FULL_DUPLEX_STREAMED", "STREAMED", true, true, false}, // Envoy heeds none once a mode is this
		{"FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED", true, false, false},
	} {
		t.Run(fmt.Sprintf("%s, %s, allowed %t", tc.request, tc.response, tc.allowed), func(t *testing.T) {
			t.Parallel()
			s := startFleet(t, stack.Config{
				Workers: stack.MixedWorkers(1, fast()...),
				Edit: func(bootstrap map[string]any) error {
					filter := stack.Filter(bootstrap, "envoy.filters.http.ext_proc")
					filter["allow_mode_override"] = tc.allowed
					mode, _ := filter["processing_mode"].(map[string]any)
					mode["request_body_mode"], mode["response_body_mode"] = tc.request, tc.response
					return nil
				},
			})
			const tokens = 50
			r := speak(t, s, id(t, "0"), words(1, 20), tokens, traffic.Observer{})
			if r.Outcome() != traffic.OK || r.Texts < tokens/2 {
				t.Fatalf("%s", describe(&r))
			}
			var seen float64
			eventually(t, "the end of the request in the EPP's books", func(ctx context.Context) error {
				m, err := s.Metrics(ctx, s.EPPs[0].Admin)
				if err != nil {
					return err
				}
				seen = m.Sum("pointsman_epp_body_bytes_total", map[string]string{"direction": "response"})
				reported := m.Sum("pointsman_epp_reservations_returned_total", map[string]string{"by": "report"})
				open := m.Sum("pointsman_epp_reservations_unseen", nil) + m.Sum("pointsman_epp_streams_in_flight", nil)
				heeded := m.Sum("pointsman_epp_mode_overrides_total", map[string]string{"result": "heeded"})
				ignored := m.Sum("pointsman_epp_mode_overrides_total", map[string]string{"result": "ignored"})
				if open == 0 && (heeded > 0) != tc.hidden || (ignored > 0) != (tc.asked && !tc.hidden) {
					err = fmt.Errorf("%v overrides were heeded, %v ignored", heeded, ignored)
				}
				if open != 0 || tc.hidden != (reported > 0) {
					return fmt.Errorf("%v open, %v ended by report, %v bytes seen", open, reported, seen)
				}
				return err
			})
			raw, err := stack.Get(t.Context(), http.DefaultClient, s.AdminURL+"/stats?filter=ext_proc.*(stream_msgs_sent|override)")
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%v bytes of responses were shown to the EPP; Envoy: %s", seen, raw)
			// The gateway's own first request lists models, which is no generation.
			if hidden := seen < 1000; hidden != tc.hidden {
				t.Errorf("hidden %t, want %t: %v bytes", hidden, tc.hidden, seen)
			}
		})
	}
}
