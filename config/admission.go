package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"pointsman/admission"
)

// admissionRows are the settings of the admission gate. Keys and variables are
// LoxiLB's (contract 1.3 and 1.3b), but for those that it has not.
func (c *Config) admissionRows() []setting {
	a, h := &c.Admission, &c.Forward.Admission
	row := func(name, usage string, v value, legacy ...string) setting {
		return setting{name: name, legacy: legacy, group: "Admission", in: Both, live: true, usage: usage, value: v}
	}
	mode := row("fc-mode", "what becomes of requests that are too many: off counts them, observe counts what enforce would do and admits them, enforce queues and refuses", modeValue(&a.Mode), "LLB_FC_MODE")
	mode.inherit = []string{"inherit"}
	expose := row("fc-expose-headers", "tell in responses x-infera-admission-inflight, -queued and -limit; inherit does while enforcing", oneOf((*string)(&h.Expose), "inherit", "on", "off"), "LLB_FC_EXPOSE_HEADERS")
	perWorker := row("queue-depth-per-ep", "requests that may wait for each worker at its cap, beside --fc-max-queue-depth; 0 none", intValue(&a.WorkerQueueDepth, 0, admission.MaxWorkerDepth), "LLB_PD_QUEUE_DEPTH_PER_EP")
	perWorker.clamp = true
	valve := row("max-total-inflight", "client connections at which accepting pauses until one closes; requests are not counted, and --metrics-port is not concerned; 0 for no bound", intValue(&c.MaxTotalInflight, 0, 2e9), "LLB_PD_MAX_TOTAL_INFLIGHT")
	valve.in, valve.live = Forwarder, false
	tenant := row("tenant-header", "request header that names the tenant, set by whoever authenticates the client; empty for none", headerValue(&h.Tenant))
	priority := row("priority-header", "request header that holds the priority, a whole number: higher goes first, below 0 is refused first; set by whoever authenticates the client; empty for none", headerValue(&h.Priority))
	tenant.live, priority.live, expose.live = false, false, false // the doors read them once
	return []setting{
		mode,
		row("fc-max-outstanding", "requests that may run at once, of all workers together, n and best_of counting; 0 for no limit", intValue(&a.MaxOutstanding, 0, admission.MaxCeiling), "LLB_FC_MAX_OUTSTANDING"),
		row("fc-replicas", "programs like this one among which --fc-max-outstanding is divided, rounding up; 0 for those that live, as load reports tell", intValue(&a.Replicas, 0, 1000)),
		row("fc-ep-max-inflight", "requests in flight on one mixed worker, all its ranks together; 0 for no limit", intValue(&c.Picker.Caps.Worker, 0, admission.MaxCeiling), "LLB_FC_EP_MAX_INFLIGHT"),
		row("fc-prefill-max-inflight", "prefill legs in flight on one worker; 0 for no limit", intValue(&c.Picker.Caps.Prefill, 0, admission.MaxCeiling), "LLB_FC_PREFILL_MAX_INFLIGHT", "LLB_PD_MAX_INFLIGHT_PER_EP"),
		row("fc-decode-max-inflight", "decode legs in flight on one worker; 0 for no limit", intValue(&c.Picker.Caps.Decode, 0, admission.MaxCeiling), "LLB_FC_DECODE_MAX_INFLIGHT"),
		row("fc-warmup-ms", "how long the cap of a worker that joined, or came back, takes to grow from a quarter to the whole; 0 for at once", millis(&c.Picker.Caps.Warmup, 0, admission.MaxWait), "LLB_FC_WARMUP_MS"),
		row("fc-max-queue-depth", "requests that may wait; 0 refuses at once", intValue(&a.QueueDepth, 0, admission.MaxDepth), "LLB_FC_MAX_QUEUE_DEPTH"),
		row("fc-max-queue-wait-ms", "how long a request may wait, from when it first has to; then 504", millis(&a.QueueWait, 0, admission.MaxWait), "LLB_FC_MAX_QUEUE_WAIT_MS", "LLB_PD_MAX_PARK_SEC"),
		row("queue-max-bytes", "memory in bytes for the bodies of waiting requests; above it 429; 0 for no limit", int64Value(&a.QueueBytes, 0, 1<<50)),
		perWorker,
		row("fc-tenant-max-share-pct", "percent of the ceiling and of the queue that one tenant may take; 0 for no limit", intValue(&a.TenantSharePct, 0, 100), "LLB_FC_TENANT_MAX_SHARE_PCT"),
		tenant,
		priority,
		row("fc-adaptive", "lower the ceiling while engines report waiting requests or first tokens come late, and raise it again", boolValue(&a.Adaptive), "LLB_FC_ADAPTIVE"),
		row("fc-ttft-target-ms", "time to first token above which the ceiling is lowered; 0 goes by waiting requests alone", millis(&a.TTFTTarget, 0, admission.MaxWait), "LLB_FC_TTFT_TARGET_MS"),
		row("fc-telemetry-stale-ms", "age at which a report of an engine counts no more; without a fresh one the ceiling stays", millis(&a.TelemetryStale, time.Millisecond, admission.MaxWait), "LLB_FC_TELEMETRY_STALE_MS"),
		expose,
		valve,
	}
}

func modeValue(p *admission.Mode) value {
	return value{"off|observe|enforce", func(s string) error {
		m, err := admission.ParseMode(s)
		if err == nil {
			*p = m
		}
		return err
	}, func() string { return p.String() }}
}

// headerValue is the name of a header, kept in lower case.
func headerValue(p *string) value {
	return value{"string", func(s string) error {
		for _, c := range []byte(s) {
			if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
				return fmt.Errorf("%q is not the name of a header", s)
			}
		}
		*p = strings.ToLower(s)
		return nil
	}, func() string { return *p }}
}

// finishAdmission derives what the gate's settings mean elsewhere.
func (c *Config) finishAdmission() {
	c.ExtProc.Admission = c.Forward.Admission
	if c.Forward.MaxDuration > 0 && c.Program == Forwarder {
		c.Admission.LeakAge = c.Forward.MaxDuration + time.Minute
	}
	if name := c.legacyAdmission(); name != "" && !c.said("fc-mode") {
		c.Admission.Mode = admission.Enforce
	}
	c.Picker.Caps.Enforce = c.Admission.Mode == admission.Enforce
}

// legacyAdmission returns the variable of LoxiLB's older admission, which has no
// mode, that has set a bound here; "" for none.
func (c *Config) legacyAdmission() string {
	for _, row := range []struct {
		name, env string
		set       bool
	}{
		{"fc-prefill-max-inflight", "LLB_PD_MAX_INFLIGHT_PER_EP", c.Picker.Caps.Prefill > 0},
		{"queue-depth-per-ep", "LLB_PD_QUEUE_DEPTH_PER_EP", c.Admission.WorkerQueueDepth > 0},
	} {
		if row.set && c.origin[row.name].from == row.env {
			return row.env
		}
	}
	return ""
}

// admissionWarnings are about bounds that nothing enforces.
func (c *Config) admissionWarnings() []string {
	var out []string
	if name := c.legacyAdmission(); name != "" && !c.said("fc-mode") {
		out = append(out, name+" is enforced, as it always was; --fc-mode off or observe would not")
	}
	if c.Admission.Mode == admission.Off {
		for _, s := range c.admissionRows() {
			switch s.name {
			case "fc-mode", "tenant-header", "priority-header", "fc-expose-headers", "max-total-inflight", "fc-replicas":
			default:
				if c.said(s.name) && s.value.get() != "0" && s.value.get() != "false" {
					out = append(out, "--"+s.name+" has no effect while --fc-mode is off")
				}
			}
		}
	}
	if c.MaxTotalInflight > 0 && c.MetricsPort == 0 {
		out = append(out, "--max-total-inflight holds back /metrics and /ready too while --metrics-port is 0")
	}
	return out
}

// queueWithoutCaps refuses a worker's queue where no worker is ever full.
func (c *Config) queueWithoutCaps() error {
	caps := c.Picker.Caps
	if c.Admission.WorkerQueueDepth > 0 && caps.Worker == 0 && caps.Prefill == 0 && caps.Decode == 0 {
		return errors.New("--queue-depth-per-ep without a cap per worker: set --fc-ep-max-inflight, --fc-prefill-max-inflight or --fc-decode-max-inflight")
	}
	return nil
}

// warmupWithoutCaps refuses a ramp of nothing.
func (c *Config) warmupWithoutCaps() error {
	caps := c.Picker.Caps
	if caps.Warmup > 0 && caps.Worker == 0 && caps.Prefill == 0 && caps.Decode == 0 {
		return errors.New("--fc-warmup-ms without a cap per worker has nothing to raise: set --fc-ep-max-inflight, --fc-prefill-max-inflight or --fc-decode-max-inflight")
	}
	return nil
}

// shareWithoutTenants refuses a tenant's share where no tenant is known: all
// requests would be one tenant's.
func (c *Config) shareWithoutTenants() error {
	if c.Admission.TenantSharePct > 0 && c.Forward.Admission.Tenant == "" {
		return errors.New("--fc-tenant-max-share-pct without --tenant-header would hold all requests for one tenant's: name the header")
	}
	return nil
}
