package inferencepool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"pointsman/fleet"
)

// Bounds of what is read of an endpoint's answer.
const (
	maxAnswer = 1 << 20 // bytes
	maxListed = 1024    // names
	maxName   = 512     // bytes of one
)

// The wait until an endpoint that did not answer is asked again, doubling.
const (
	askAgain = time.Second
	askMost  = time.Minute
)

// answer is what an endpoint told of its models, or is about to.
type answer struct {
	incarnation string
	model       string // "" until it has told
	aliases     []string
	adapters    []string
	engine      fleet.Engine
	next        time.Time // when it is to be asked (again)
	wait        time.Duration
	asking      bool
}

// apply returns w with what is known of its model, w itself when nothing is.
func (a *answer) apply(w *fleet.Worker) *fleet.Worker {
	if a == nil || a.model == "" || a.incarnation != w.Incarnation || w.Model != "" {
		return w
	}
	named := *w
	named.Model, named.Aliases, named.Adapters, named.Engine = a.model, a.aliases, a.adapters, a.engine
	return &named
}

// askModels asks endpoints without a record for their models until ctx is done.
func (f *follower) askModels(ctx context.Context) {
	if f.cfg.Model != "" {
		return
	}
	plain, h2c := client(false), client(true)
	defer plain.CloseIdleConnections()
	defer h2c.CloseIdleConnections()
	var wg sync.WaitGroup
	defer wg.Wait()
	places := make(chan struct{}, f.cfg.Asked)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.news:
		case <-timer.C:
		}
		ask, next := f.due(time.Now())
		timer.Reset(next)
		for _, w := range ask {
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				return
			}
			use := plain
			if f.speaksH2C() {
				use = h2c
			}
			wg.Go(func() {
				defer func() { <-places }()
				got, err := models(ctx, use, w.URL, f.cfg.AskFor)
				if ctx.Err() == nil {
					f.told(ctx, w, got, err)
				}
			})
		}
	}
}

func (f *follower) speaksH2C() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shape != nil && f.shape.h2c
}

// due returns the endpoints that are to be asked now, and how long until the next.
func (f *follower) due(now time.Time) (ask []*fleet.Worker, next time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next = f.cfg.Refresh
	for id, claims := range f.table.claims {
		w := claims[0].worker
		if !claims[0].bare || w.Status != fleet.Active {
			continue
		}
		a := f.models[id]
		if a == nil || a.incarnation != w.Incarnation {
			a = &answer{incarnation: w.Incarnation, wait: askAgain}
			f.models[id] = a
		}
		switch wait := a.next.Sub(now); {
		case a.asking:
		case wait > 0:
			next = min(next, wait)
		default:
			a.asking = true
			ask = append(ask, w)
		}
	}
	return ask, next
}

// told takes note of an endpoint's answer.
func (f *follower) told(ctx context.Context, w *fleet.Worker, got *answer, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.models[w.ID]
	if a == nil || a.incarnation != w.Incarnation {
		return // the endpoint is gone, or a new process
	}
	a.asking = false
	wake(f.news) // the time of the next question is known
	if err != nil {
		f.metrics.asked.WithLabelValues("failed").Inc()
		f.log.LogAttrs(ctx, slog.LevelDebug, "an endpoint did not tell its models", slog.String("worker_id", w.ID), slog.Any("error", err))
		a.next, a.wait = time.Now().Add(a.wait), min(2*a.wait, askMost)
		return
	}
	f.metrics.asked.WithLabelValues("answered").Inc()
	if a.model != got.model {
		f.log.LogAttrs(ctx, slog.LevelInfo, "an endpoint told its model", slog.String("worker_id", w.ID), slog.String("model", got.model))
	}
	got.incarnation, got.wait, got.next = a.incarnation, askAgain, time.Now().Add(f.cfg.Refresh)
	f.models[w.ID] = got
	if len(f.table.claims[w.ID]) > 0 {
		f.publish(ctx, []string{w.ID})
	}
}

// client returns an HTTP client for questions to endpoints.
func client(h2c bool) *http.Client {
	t := &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 5 * time.Second, DisableCompression: true}
	if h2c {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// models asks the endpoint at url what it serves.
func models(ctx context.Context, c *http.Client, url string, longest time.Duration) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/models", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, err
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("more than %d bytes", maxAnswer)
	}
	return readModels(body)
}

// readModels reads OpenAI's list of models as engines give it. vLLM and SGLang
// list the model by each of its names, then the LoRA adapters on it, each with the
// model as its parent.
func readModels(body []byte) (*answer, error) {
	var list struct {
		Data []struct {
			ID      string `json:"id"`
			Parent  string `json:"parent"`
			OwnedBy string `json:"owned_by"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	a := new(answer)
	for i, m := range list.Data {
		if m.ID == "" || len(m.ID) > maxName || i >= maxListed {
			continue
		}
		switch {
		case m.Parent != "":
			a.adapters = append(a.adapters, m.ID)
		case a.model == "":
			a.model = m.ID
			if e := fleet.Engine(m.OwnedBy); e == fleet.VLLM || e == fleet.SGLang {
				a.engine = e
			}
		default:
			a.aliases = append(a.aliases, m.ID)
		}
	}
	if a.model == "" {
		return nil, errors.New("no model is listed")
	}
	slices.Sort(a.aliases)
	slices.Sort(a.adapters)
	return a, nil
}
