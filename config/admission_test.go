package config_test

import (
	"strings"
	"testing"
	"time"

	"pointsman/admission"
	"pointsman/config"
)

// contract 2C, fc_prefill_max_inflight: of both of LoxiLB's variables the newer
// counts, and the read-back names it.
func TestFcPrefillMaxInflightPrefersTheNewerVariable(t *testing.T) {
	c, err := parse(t, config.EPP, map[string]string{"LLB_PD_MAX_INFLIGHT_PER_EP": "4", "LLB_FC_PREFILL_MAX_INFLIGHT": "7", "LLB_FC_MODE": "enforce"})
	if err != nil {
		t.Fatal(err)
	}
	if e := effective(t, c, "fc-prefill-max-inflight"); c.Picker.Caps.Prefill != 7 || e.Source != "env:LLB_FC_PREFILL_MAX_INFLIGHT" {
		t.Errorf("prefill cap %d from %q", c.Picker.Caps.Prefill, e.Source)
	}
	if c.Admission.Mode != admission.Enforce || !c.Picker.Caps.Enforce {
		t.Errorf("mode %v, caps enforced %v", c.Admission.Mode, c.Picker.Caps.Enforce)
	}
}

// LoxiLB's older admission has no mode: its cap alone refuses (contract 1.3).
func TestLoxiLBsOldCapIsEnforcedUnlessAModeIsNamed(t *testing.T) {
	old := map[string]string{"LLB_PD_MAX_INFLIGHT_PER_EP": "4", "LLB_PD_QUEUE_DEPTH_PER_EP": "900", "LLB_PD_MAX_PARK_SEC": "30"}
	c, err := parse(t, config.EPP, old)
	if err != nil {
		t.Fatal(err)
	}
	if c.Admission.Mode != admission.Enforce || !c.Picker.Caps.Enforce || c.Admission.QueueWait != 30*time.Second {
		t.Errorf("mode %v, wait %v", c.Admission.Mode, c.Admission.QueueWait)
	}
	if c.Admission.WorkerQueueDepth != admission.MaxWorkerDepth {
		t.Errorf("depth per worker %d, want it clamped to %d", c.Admission.WorkerQueueDepth, admission.MaxWorkerDepth)
	}
	if text := strings.Join(c.Warnings(), "; "); !strings.Contains(text, "LLB_PD_MAX_INFLIGHT_PER_EP is enforced") {
		t.Errorf("warnings: %s", text)
	}
	if c, err = parse(t, config.EPP, old, "--fc-mode", "off"); err != nil || c.Admission.Mode != admission.Off || c.Picker.Caps.Enforce {
		t.Errorf("with a mode named: %v, %v", c.Admission.Mode, err)
	}
	if text := strings.Join(c.Warnings(), "; "); !strings.Contains(text, "--fc-prefill-max-inflight has no effect") {
		t.Errorf("warnings: %s", text)
	}
}

func TestAdmissionSettingsThatContradictEachOtherAreRefused(t *testing.T) {
	tests := []struct{ name, args, want string }{
		{"a queue without a wait", "--fc-max-queue-depth 5 --fc-max-queue-wait-ms 0", "queue wait of 0"},
		{"a worker's queue without a wait", "--queue-depth-per-ep 5 --fc-ep-max-inflight 1 --fc-max-queue-wait-ms 0", "queue wait of 0"},
		{"a worker's queue without a cap", "--queue-depth-per-ep 5", "without a cap"},
		{"a warm-up without a cap", "--fc-warmup-ms 500", "without a cap"},
		{"a share without tenants", "--fc-tenant-max-share-pct 50", "--tenant-header"},
		{"adaptive without a ceiling", "--fc-adaptive", "ceiling"},
		{"a TTFT target without adaptive", "--fc-max-outstanding 4 --fc-ttft-target-ms 100", "adaptive"},
		{"a ceiling out of range", "--fc-max-outstanding 100001", "0 to 100000"},
		{"a depth out of range", "--fc-max-queue-depth 65537", "0 to 65536"},
		{"an unknown mode", "--fc-mode enforced", "off, observe or enforce"},
		{"no header's name", "--tenant-header a:b", "name of a header"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := parse(t, config.EPP, nil, strings.Fields(tt.args)...); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one that says %q", err, tt.want)
			}
		})
	}
}

func TestAPoolSaysUnlimitedAndInheritsAMode(t *testing.T) {
	file := write(t, "pools: {chat: {fc_mode: inherit, fc_max_outstanding: 0}}")
	c, err := parse(t, config.Forwarder, map[string]string{"LLB_FC_MAX_OUTSTANDING": "9", "INFERA_FC_MODE": "observe"}, "--config", file, "--pool-name", "chat")
	if err != nil {
		t.Fatal(err)
	}
	if c.Admission.MaxOutstanding != 0 || c.Admission.Mode != admission.Observe {
		t.Errorf("ceiling %d, mode %v, want none and observe", c.Admission.MaxOutstanding, c.Admission.Mode)
	}
}
