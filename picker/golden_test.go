package picker_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/picker"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the wanted output in testdata")

// TestConversations replays testdata/*.txt: stanzas of commands, "----", and what
// they print. The state lasts for a whole file. After a wanted change: go test
// ./picker -rewrite, and read the diff before you commit it. README.txt there
// lists the commands.
func TestConversations(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 2 {
		t.Fatalf("no conversations: %v", err)
	}
	for _, file := range files {
		if filepath.Base(file) == "README.txt" {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, string(src))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(src) {
				t.Errorf("got:\n%s\nwant:\n%s", got, src)
			}
		})
	}
}

func replay(t *testing.T, src string) string {
	t.Helper()
	c := &conversation{decisions: map[string]*picker.Decision{}}
	var out strings.Builder
	for stanza := range strings.SplitSeq(strings.TrimRight(src, "\n"), "\n\n") {
		commands, _, prints := strings.Cut(stanza, "\n----")
		if out.Len() > 0 {
			out.WriteString("\n\n")
		}
		out.WriteString(commands)
		c.out.Reset()
		for line := range strings.SplitSeq(commands, "\n") {
			if line != "" && !strings.HasPrefix(line, "#") {
				c.do(t, line)
			}
		}
		if prints || c.out.Len() > 0 {
			fmt.Fprintf(&out, "\n----\n%s", strings.TrimRight(c.out.String(), "\n"))
		}
	}
	out.WriteString("\n")
	return out.String()
}

// conversation is a world with named requests in flight.
type conversation struct {
	*world
	decisions map[string]*picker.Decision
	out       strings.Builder
}

func (c *conversation) do(t *testing.T, line string) {
	t.Helper()
	verb, rest, _ := strings.Cut(line, " ")
	args := strings.Fields(rest)
	if verb != "policy" && c.world == nil {
		t.Fatalf("%q: a conversation begins with policy", line)
	}
	switch verb {
	case "policy":
		cfg := config(args[0], number(t, opt(args, "weight", "1")))
		cfg.Shadow = opt(args, "shadow", "")
		cfg.PDSkipPrefillTokens = int(number(t, opt(args, "skip", "0")))
		c.world = newWorld(t, cfg)
	case "worker":
		c.feed.Put(described(t, args))
	case "remove":
		c.feed.Delete(args[0])
	case "hold":
		size, err := strconv.Atoi(opt(args, "size", "16"))
		if err != nil {
			t.Fatal(err)
		}
		c.hold(args[0], args[1], size)
		c.now = c.now.Add(time.Second) // block sizes are read again
	case "others":
		c.p.SetExternal(args[0], -1, picker.External{
			Requests: number(t, opt(args, "requests", "0")), PrefillTokens: number(t, opt(args, "prefill", "0")),
			Decoders: number(t, opt(args, "decoders", "0")), Rate: number(t, opt(args, "rate", "0")),
		}, c.now)
	case "scraped":
		c.p.SetScraped(args[0], -1, picker.Scraped{
			Queued: number(t, opt(args, "queued", "0")), Usage: number(t, opt(args, "usage", "0")),
		})
	case "at":
		d, err := time.ParseDuration(args[0])
		if err != nil {
			t.Fatal(err)
		}
		c.now = t0.Add(d)
	case "pick", "direct":
		c.start(t, verb, args)
	case "prefilled":
		outcome := map[string]breaker.Outcome{"success": breaker.Success, "fault": breaker.Connect, "neutral": breaker.Neutral}
		c.decisions[args[0]].PrefillDone(c.now, outcome[args[1]])
	case "dry":
		c.print(c.p.Dry(c.now, c.ask(t, args)))
	case "times":
		c.times(t, args)
	case "first":
		c.decisions[args[0]].FirstToken(c.now)
	case "done":
		outcome := map[string]breaker.Outcome{"success": breaker.Success, "fault": breaker.Connect, "neutral": breaker.Neutral}
		c.decisions[args[0]].Done(c.now, outcome[args[1]])
	default:
		t.Fatalf("%q: unknown command", line)
	}
}

// start is "pick NAME PROMPT [options]" and "direct NAME PROMPT worker=ID [prefill=ID]".
func (c *conversation) start(t *testing.T, verb string, args []string) {
	t.Helper()
	req := c.ask(t, args)
	var d picker.Decision
	var err error
	if verb == "direct" {
		d, err = c.p.Direct(c.now, opt(args, "worker", ""), opt(args, "prefill", ""), req)
	} else {
		d, err = c.p.Pick(c.now, req)
	}
	if err != nil {
		fmt.Fprintf(&c.out, "%s: %v\n", args[0], err)
		return
	}
	c.decisions[args[0]] = &d
	fmt.Fprintf(&c.out, "%s: ", args[0])
	records := c.p.Records()
	c.print(records[0])
	if d.Prefill != nil {
		c.out.WriteString("after ")
		c.print(records[1])
	}
}

// times is "times N PROMPT [options]": N picks left in flight, and where they went.
// %d in the prompt is the number of the pick.
func (c *conversation) times(t *testing.T, args []string) {
	t.Helper()
	n, err := strconv.Atoi(args[0])
	if err != nil {
		t.Fatal(err)
	}
	went := map[string]int{}
	for i := range n {
		prompt := strings.ReplaceAll(args[1], "%d", strconv.Itoa(i))
		d := c.pick(c.ask(t, append([]string{args[0], prompt}, args[2:]...)))
		went[d.Worker.ID]++
		if opt(args, "done", "") != "" {
			d.FirstToken(c.now)
			d.Done(c.now, breaker.Success)
		}
	}
	for i, id := range slices.Sorted(maps.Keys(went)) {
		if i > 0 {
			c.out.WriteByte(' ')
		}
		fmt.Fprintf(&c.out, "%s=%d", id, went[id])
	}
	c.out.WriteByte('\n')
}

// ask reads "NAME PROMPT [options]".
func (c *conversation) ask(t *testing.T, args []string) *picker.Request {
	t.Helper()
	req := &picker.Request{ID: args[0], Model: opt(args, "model", "m"), Reason: "exact"}
	c.fill(req, strings.TrimPrefix(args[1], "-"))
	retention := map[string]picker.Retention{
		"none": picker.RetentionNone, "short": picker.RetentionShort, "long": picker.RetentionLong,
	}
	req.Retention = retention[opt(args, "retention", "")]
	req.ByLoad = slices.Contains(args, "by-load")
	req.Unary = slices.Contains(args, "unary")
	req.NoPair = slices.Contains(args, "no-pair")
	req.AnyModel = slices.Contains(args, "any-model")
	if images := opt(args, "images", ""); images != "" {
		req.Multimodal = true
		for s := range strings.SplitSeq(images, ",") {
			req.Images = append(req.Images, uint64(number(t, s)))
		}
	}
	if tried := opt(args, "tried", ""); tried != "" {
		req.Tried = strings.Split(tried, ",")
	}
	if subset := opt(args, "subset", "-"); subset != "-" {
		req.HasSubset = true
		if subset != "" {
			req.Subset = strings.Split(subset, ",")
		}
	}
	return req
}

// print writes a record: the choice, then each candidate's cost and terms.
func (c *conversation) print(r picker.Record) {
	switch {
	case r.Leg != "" && r.Partner != "":
		fmt.Fprintf(&c.out, "%s on %s with %s hit=%d %s", r.Leg, r.Chosen, r.Partner, r.HitTokens, r.Reason)
	case r.Error != "":
		fmt.Fprintf(&c.out, "%s", r.Error)
	default:
		fmt.Fprintf(&c.out, "%s hit=%d %s", r.Chosen, r.HitTokens, r.Reason)
	}
	if r.AllOpen {
		c.out.WriteString(" all-open")
	}
	if sh := r.Shadow; sh != nil {
		fmt.Fprintf(&c.out, ", %s would take %s: %+.4g ms, %+.4g tokens", sh.Policy, sh.Chosen, sh.MS, sh.HitTokens)
	}
	c.out.WriteByte('\n')
	for _, cand := range r.Candidates {
		name := cand.Worker
		if cand.Rank >= 0 {
			name += "#dp" + strconv.Itoa(cand.Rank)
		}
		fmt.Fprintf(&c.out, "  %s cost=%.6g", name, cand.Cost)
		for _, term := range cand.Terms {
			fmt.Fprintf(&c.out, " %s=%.6g", term.Scorer, term.Cost)
		}
		if cand.Active+cand.Recent > 0 {
			fmt.Fprintf(&c.out, " (active %.6g, recent %.6g)", cand.Active, cand.Recent)
		}
		if cand.Promised > 0 {
			fmt.Fprintf(&c.out, " (promised %.6g)", cand.Promised)
		}
		if cand.Rate > 0 && cand.Excluded == "" {
			fmt.Fprintf(&c.out, " (te %.6g after %.6g at %.4g/ms %s)", cand.Work, cand.Queue, cand.Rate, cand.RateSource)
		}
		if cand.Excluded != "" {
			fmt.Fprintf(&c.out, " excluded: %s", cand.Excluded)
		}
		c.out.WriteByte('\n')
	}
}

// described reads "ID [size=16] [model=m] [role=mixed] [status=active] [ranks=0]".
func described(t *testing.T, args []string) *fleet.Worker {
	t.Helper()
	w := worker(args[0])
	w.Model = opt(args, "model", "m")
	w.BlockSize = int(number(t, opt(args, "size", "16")))
	w.DPSize = int(number(t, opt(args, "ranks", "0")))
	w.Role = map[string]fleet.Role{"prefill": fleet.Prefill, "decode": fleet.Decode}[opt(args, "role", "")]
	w.Protocol = opt(args, "protocol", "")
	w.Engine = fleet.Engine(opt(args, "engine", "vllm"))
	if opt(args, "events", "") != "" {
		w.KVEvents = "tcp://" + w.ID + ":5557"
	}
	w.Status = map[string]fleet.Status{"draining": fleet.Draining, "dead": fleet.Dead}[opt(args, "status", "")]
	return w
}

func opt(args []string, name, otherwise string) string {
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, name+"="); ok {
			return v
		}
	}
	return otherwise
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
