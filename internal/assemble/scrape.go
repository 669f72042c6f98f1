package assemble

import (
	"time"

	"pointsman/config"
	"pointsman/internal/run"
	"pointsman/picker"
	"pointsman/plugins/reports/scrape"
)

// silenceBeforeScrape is how long a worker's forwarder may take to report before its
// engine is asked.
const silenceBeforeScrape = 10 * time.Second

// startScrape asks the engines of workers that no forwarder reports on; of all, while
// the policy goes by the use of KV memory, of which forwarders know nothing.
func (c *Core) startScrape(parts *run.Group) {
	l := &c.loads
	if !c.Config.Reports.Scrape || c.Config.Program != config.EPP {
		return
	}
	want := func(worker string) bool {
		picking := c.Live.Current().Picker
		return picking.UsesUsage() || l.board != nil && time.Since(l.started) > silenceBeforeScrape && !l.board.Heard(worker, time.Now())
	}
	parts.Go("engine metrics", scrape.New(c.Store, want, c.scraped).Run)
}

// scraped takes what an engine says. Where no forwarder speaks for it, what is not our
// own is others', and what waits in the engine is news for adaptive limits.
func (c *Core) scraped(worker string, e scrape.Engine, at time.Time) {
	if e.KVUse >= 0 {
		c.Picker.SetScraped(worker, -1, picker.Scraped{Queued: -1, Usage: e.KVUse, At: at})
	}
	if board := c.loads.board; board == nil || board.Heard(worker, at) {
		return
	}
	c.Gate.Report(at, worker, int(e.Waiting))
	own, ownWaiting := c.Picker.Own(worker)
	requests := max(0, e.Running+e.Waiting-float64(own))
	waiting := min(requests, max(0, e.Waiting-float64(ownWaiting)))
	c.Picker.SetExternal(worker, -1, picker.External{Requests: requests, Waiting: waiting, Decoders: requests - waiting, Every: scrape.Slowest}, at)
}
