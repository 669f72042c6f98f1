package config

import (
	"time"

	"pointsman/reports"
)

// reportRows are the settings of load reports between forwarders and pickers.
func (c *Config) reportRows() []setting {
	r := &c.Reports
	row := func(name string, in Program, usage string, v value) setting {
		return setting{name: name, group: "Load reports", in: in, process: true, usage: usage, value: v}
	}
	stale := row("load-report-stale-s", Both, "age from which a report fades to the mean of the fleet; 0 for 6 s", seconds(&c.Picker.ExternalStale, 0, time.Hour))
	unseen := row("reservation-ttl-s", EPP, "with response_body_mode NONE: for how long a request counts that no forwarder reports on", seconds(&c.ExtProc.ReservationTTL, time.Second, 24*time.Hour))
	stale.live, unseen.live = true, true
	return []setting{
		row("load-reports", Both, "how forwarders tell pickers what workers have in flight and how requests ended: nats over the broker, http from each forwarder by a subscription, auto by the broker where there is one and by http from whom is not heard there, or off", oneOf(&r.Mode, reports.Modes()...)),
		row("load-report-interval-ms", Forwarder, "least time between two reports of a change", millis(&r.Interval, time.Millisecond, 10*time.Second)),
		row("load-report-heartbeat-s", Forwarder, "how often everything is reported, changed or not", seconds(&r.Heartbeat, 100*time.Millisecond, time.Minute)),
		row("load-report-idle-heartbeat-s", Forwarder, "the same while nothing is in flight; 0 for no other", seconds(&r.IdleHeartbeat, 0, time.Minute)),
		stale,
		unseen,
		row("warm-timeout-s", EPP, "longest wait, before this replica says ready, for the reports and cache events that it has missed; 0 does not wait", seconds(&r.WarmTimeout, 0, time.Hour)),
		row("warm-peers", EPP, "where other replicas serve their metrics, host:port with commas; a name is all its addresses, such as a headless Service's. A new replica asks one of them, with --admin-token, what prompts are where, and each answers; empty for neither", stringValue(&r.Peers)),
		row("scrape-engines", EPP, "ask the engines of workers whose forwarders do not report for their queue, every 250 ms to 5 s", boolValue(&r.Scrape)),
	}
}
