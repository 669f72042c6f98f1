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

// startScrape asks the engines of workers that no forwarder reports on.
func (c *Core) startScrape(parts *run.Group) {
	l := &c.loads
	if l.board == nil || !c.Config.Reports.Scrape || c.Config.Program != config.EPP {
		return
	}
	want := func(worker string) bool {
		now := time.Now()
		return now.Sub(l.started) > silenceBeforeScrape && !l.board.Heard(worker, now)
	}
	parts.Go("engine metrics", scrape.New(c.Store, want, c.scraped).Run)
}

// scraped takes what an engine says: what is not our own is others', and what waits
// in the engine is news for adaptive limits.
func (c *Core) scraped(worker string, e scrape.Engine, at time.Time) {
	c.Gate.Report(at, worker, int(e.Waiting))
	own, ownWaiting := c.Picker.Own(worker)
	requests := max(0, e.Running+e.Waiting-float64(own))
	waiting := min(requests, max(0, e.Waiting-float64(ownWaiting)))
	c.Picker.SetExternal(worker, -1, picker.External{Requests: requests, Waiting: waiting, Decoders: requests - waiting}, at)
}
