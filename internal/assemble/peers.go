package assemble

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/internal/ops"
	"pointsman/picker"
	"pointsman/reports"
)

// Bounds of what one replica asks of another.
const (
	peerVersion = 1
	peerTimeout = 3 * time.Second // of one answer
	patience    = 2 * time.Second // for somebody to answer, once the fleet is known: there may be no other
	peerPause   = 250 * time.Millisecond
	maxAnswer   = 8 << 20
	maxPrompts  = 8192 // prompts of an answer
)

// peerHead is the first line of an answer: what has to agree for its hashes to mean
// the same here.
type peerHead struct {
	Version int    `json:"v"`
	Picker  string `json:"picker"`
	Hash    string `json:"hash"` // how blocks are hashed
	Salt    string `json:"salt"` // --cache-salt-mode
}

// blockHash names the way of kvindex.HashTokens.
const blockHash = "xxh3-chain"

// peerLine is one prompt, or, with End, the last line.
type peerLine struct {
	Worker      string `json:"id,omitempty"`
	Incarnation string `json:"inc,omitempty"`
	Rank        int    `json:"rank,omitempty"`
	Size        int    `json:"size,omitempty"`
	Blocks      int    `json:"blocks,omitempty"`
	Marks       string `json:"marks,omitempty"`
	LeftMS      int64  `json:"left_ms,omitempty"`
	End         *int   `json:"end,omitempty"` // how many there were
}

// peers asks the other replicas what prompts are where, and answers them.
type peers struct {
	c       *Core
	http    *http.Client
	asked   atomic.Bool // an answer was taken, or is waited for no more
	answers *prometheus.CounterVec
	prompts prometheus.Counter
}

func newPeers(c *Core) *peers {
	c.Picker.Remember()
	return &peers{
		c: c, http: &http.Client{
			Timeout: peerTimeout, Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil},
			CheckRedirect: stay, // another port of the same host would get the token
		},
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pointsman_warm_answers_total", Help: "Other replicas that were asked what prompts are where, by outcome: taken, failed (out of reach, or not ready), refused (their hashes mean other things, or the answer is too long or broken)."}, []string{"outcome"}),
		prompts: prometheus.NewCounter(prometheus.CounterOpts{Name: "pointsman_warm_prompts_total", Help: "Prompts in workers' caches that other replicas have told of."}),
	}
}

// stay is a client's answer to redirects: it goes nowhere else.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Register implements collector.
func (s *peers) Register(reg prometheus.Registerer) error {
	return errors.Join(reg.Register(s.answers), reg.Register(s.prompts))
}

// errAnswer means that an answer is none that can be used.
var errAnswer = errors.New("another replica's answer is of no use")

func (s *peers) head() peerHead {
	return peerHead{Version: peerVersion, Picker: s.c.loads.id, Hash: blockHash, Salt: string(s.c.Config.Trust.SaltMode)}
}

// run asks one replica after the other until one has answered, or this one has waited
// long enough for it.
func (s *peers) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(s.c.Config.Reports.WarmTimeout, peerTimeout))
	defer cancel()
	var began time.Time
	for ctx.Err() == nil && (began.IsZero() || time.Since(began) < patience) {
		if s.c.Store.Synced() { // else nobody knows of whom they speak
			if began.IsZero() {
				began = time.Now()
			}
			for _, addr := range s.addresses(ctx) {
				n, err := s.ask(ctx, addr)
				s.count(ctx, addr, n, err)
				if err == nil {
					s.asked.Store(true)
					return nil
				}
			}
		}
		pause := time.NewTimer(peerPause)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
	s.asked.Store(true) // in vain
	return nil
}

func (s *peers) count(ctx context.Context, addr string, n int, err error) {
	outcome := "taken"
	switch {
	case errors.Is(err, errAnswer):
		outcome = "refused"
	case err != nil:
		outcome = "failed"
	}
	s.answers.WithLabelValues(outcome).Inc()
	s.prompts.Add(float64(n))
	s.c.Log.LogAttrs(ctx, slog.LevelDebug, "another replica was asked what prompts are where",
		slog.String("address", addr), slog.String("outcome", outcome), slog.Int("prompts", n), slog.Any("error", err))
}

// addresses returns where the replicas are, in no order.
func (s *peers) addresses(ctx context.Context) (out []string) {
	for peer := range strings.SplitSeq(s.c.Config.Reports.Peers, ",") {
		host, port, err := net.SplitHostPort(strings.TrimSpace(peer))
		if err != nil {
			continue // Validate has refused it
		}
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			continue // nobody there yet
		}
		for _, ip := range ips {
			out = append(out, net.JoinHostPort(ip, port))
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] }) //nolint:gosec // spread, not secrecy
	return out
}

// ask takes one replica's answer, which counts only when it is whole.
func (s *peers) ask(ctx context.Context, addr string) (n int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+ops.PeersPath, http.NoBody)
	if err != nil {
		return 0, fmt.Errorf("ask %s: %w", addr, err)
	}
	if token := s.c.Config.AdminToken; token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask %s: %w", addr, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("ask %s: %s", addr, resp.Status)
	}
	told, err := s.read(resp.Body)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	for i := range told {
		if s.c.Picker.Learn(&told[i], now) {
			n++
		}
	}
	return n, nil
}

// read reads an answer to its end.
func (s *peers) read(body io.Reader) (told []picker.Told, err error) {
	limited := &io.LimitedReader{R: body, N: maxAnswer}
	lines := bufio.NewScanner(limited)
	var head peerHead
	want := s.head()
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &head) != nil {
		return nil, fmt.Errorf("%w: no head", errAnswer)
	}
	if want.Picker = head.Picker; head != want || head.Picker == s.c.loads.id && head.Picker != "" {
		return nil, fmt.Errorf("%w: it is %+v", errAnswer, head)
	}
	for lines.Scan() {
		var l peerLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("%w: %w", errAnswer, err)
		}
		if l.End != nil && *l.End == len(told) {
			return told, nil
		}
		if l.End != nil || len(told) == maxPrompts {
			return nil, fmt.Errorf("%w: %d prompts", errAnswer, len(told))
		}
		told = append(told, picker.Told{
			Worker: l.Worker, Incarnation: l.Incarnation, Rank: l.Rank, Left: time.Duration(l.LeftMS) * time.Millisecond,
			Trail: picker.Trail(reports.ParseTrail(l.Size, l.Blocks, l.Marks)),
		})
	}
	return nil, fmt.Errorf("%w: it ends after %d prompts and %d bytes: %w", errAnswer, len(told), maxAnswer-limited.N, errors.Join(lines.Err(), io.ErrUnexpectedEOF))
}

// Peers answers other replicas, once this one is ready itself; nil when there are none.
func (c *Core) Peers(ctx context.Context) http.Handler {
	s := c.loads.peers
	if s == nil {
		return nil
	}
	ready := c.Ready(ctx)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		told := c.Picker.Recall(time.Now())
		told = told[max(0, len(told)-maxPrompts):]
		w.Header().Set("Content-Type", "application/x-ndjson")
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(peerTimeout)) // not supported by some writers of tests
		out := json.NewEncoder(w)
		err := out.Encode(s.head())
		for i := 0; i < len(told) && err == nil; i++ {
			t := &told[i]
			tr := reports.Trail(t.Trail)
			err = out.Encode(peerLine{Worker: t.Worker, Incarnation: t.Incarnation, Rank: t.Rank, Size: tr.Size, Blocks: tr.Blocks, Marks: tr.Marks(), LeftMS: t.Left.Milliseconds()})
		}
		if n := len(told); err == nil {
			_ = out.Encode(peerLine{End: &n}) // who does not get it asks again
		}
	})
}
