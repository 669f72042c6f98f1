package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"pointsman/internal/history"
	"pointsman/internal/simengine"
	"pointsman/internal/stack"
)

// Models of the fleet: the mixed engines', reached over NATS, and the pairs',
// reached over HTTP.
const (
	mixedModel = "mixed-model"
	pairModel  = "pair-model"
	pickers    = 2
	lease      = 3 * time.Second
	stopTime   = 20 * time.Second // for an orderly end of a picker
	explained  = "32"             // picks that a program shows: of some seconds
)

// fleet is the running stack and what the faults and the judge need of it.
type fleet struct {
	*stack.Stack

	dir      string
	settings string // path of the programs' settings file
	client   *http.Client

	mu     sync.Mutex
	killed []history.Receipt // of engines that are gone, with their running requests marked as lost
}

// startFleet starts 3 prefill, 3 decode and 2 mixed engines with all that
// belongs to them. Their logs are kept in dir.
func startFleet(ctx context.Context, bin, envoy, dir string) (*fleet, error) {
	f := &fleet{dir: dir, settings: filepath.Join(dir, "settings.yaml"), client: &http.Client{Timeout: 5 * time.Second}}
	if err := f.configure(goodSettings(3)); err != nil {
		return nil, err
	}
	engine := []string{"--prefill-tokens-per-s", "20000", "--decode-ms-per-step", "8"}
	pairs := stack.PairedWorkers(3, 3, engine...)
	mixed := stack.MixedWorkers(2, engine...)
	for i := range pairs {
		pairs[i].Model, pairs[i].Direct = pairModel, true
	}
	for i := range mixed {
		mixed[i].Model = mixedModel
	}
	s, err := stack.Start(ctx, stack.Config{
		Bin: bin, Envoy: envoy, Dir: dir, Workers: append(pairs, mixed...), Broker: &stack.BrokerConfig{}, Proxied: true,
		EPPs: pickers, Lease: lease, Profiled: true,
		EPPArgs:       []string{"--config", f.settings, "--drain-delay", "0.5", "--drain-timeout", "15"},
		ForwarderArgs: []string{"--config", f.settings, "--stream-idle-timeout", "20", "--prefill-timeout", "10", "--pd-first-token-timeout", "10", "--nats-req-idle-timeout", "20", "--explain-ring", explained},
	})
	f.Stack = s
	return f, err
}

// goodSettings are the settings that a reload changes: how many faults open a
// circuit. Short cooldowns let a run see several windows.
func goodSettings(threshold int) string {
	return fmt.Sprintf("breaker-failure-threshold: %d\nbreaker-cooldown-s: 1\nbreaker-max-cooldown-s: 4\n", threshold)
}

const badSettings = "breaker-failure-threshold: many\nno-such-setting: 1\n"

// configure replaces the settings file as a whole, as a ConfigMap's update does.
func (f *fleet) configure(text string) error {
	next := f.settings + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(next, f.settings)
}

// roles are the workers' kinds, in their order.
func (f *fleet) roles() []string {
	var roles []string
	for _, w := range f.workers() {
		roles = append(roles, w.Role)
	}
	return roles
}

func (f *fleet) workers() []history.Worker {
	all := make([]history.Worker, len(f.Workers))
	for i, w := range f.Workers {
		all[i] = history.Worker{ID: w.ID, Model: w.Config.Model, Role: w.Config.Role}
		if all[i].Role == "" {
			all[i].Role = "mixed"
		}
	}
	return all
}

// loseLease makes etcd forget a worker, as when its lease runs out.
func (f *fleet) loseLease(ctx context.Context, worker string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{f.Etcd.Endpoint}, DialTimeout: 2 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer c.Close()
	got, err := c.Get(ctx, "/infera/workers/", clientv3.WithPrefix())
	if err != nil {
		return err
	}
	for _, kv := range got.Kvs {
		if strings.HasSuffix(string(kv.Key), worker) && kv.Lease != 0 {
			_, err = c.Revoke(ctx, clientv3.LeaseID(kv.Lease))
		}
	}
	return err
}

// fault sets what engine i does wrong, whatever way requests reach it.
func (f *fleet) fault(ctx context.Context, i int, mode string) error {
	return f.control(ctx, i, "/control/fault", simengine.Fault{Mode: mode})
}

func (f *fleet) control(ctx context.Context, i int, path string, body any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.Workers[i].Control+path, strings.NewReader(string(raw)))
	if err != nil {
		return err
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s of %s: %s", path, f.Workers[i].ID, resp.Status)
	}
	return nil
}

// receipts returns what engine i has noted since it started.
func (f *fleet) receipts(ctx context.Context, i int) ([]history.Receipt, error) {
	raw, err := stack.Get(ctx, f.client, f.Workers[i].Control+"/receipts?format=array")
	if err != nil {
		return nil, err
	}
	var list []simengine.Receipt
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("receipts of %s: %w", f.Workers[i].ID, err)
	}
	out := make([]history.Receipt, 0, len(list))
	for i := range list {
		if strings.HasPrefix(list[i].Path, "/v1/") {
			out = append(out, receiptOf(&list[i]))
		}
	}
	return out, nil
}

func receiptOf(r *simengine.Receipt) history.Receipt {
	// An engine may know the request under another name than its client does.
	request := r.RequestID
	if at := strings.LastIndexByte(r.AttemptID, '/'); at > 0 {
		request = r.AttemptID[:at]
	}
	out := history.Receipt{
		Worker: r.WorkerID, Request: request, Attempt: r.AttemptID, Leg: r.Leg,
		Received: r.ReceivedAt, Complete: r.Outcome == simengine.OutcomeComplete, Produced: r.TokensSent > 0,
	}
	if r.EndedAt != nil {
		out.Ended = *r.EndedAt
	}
	return out
}

// kill ends engine i by SIGKILL and keeps its receipts.
func (f *fleet) kill(ctx context.Context, i int) error {
	list, err := f.receipts(ctx, i)
	if err != nil {
		return err
	}
	f.Workers[i].Engine.Kill()
	for k := range list {
		list[k].Lost = list[k].Ended.IsZero()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.killed = append(f.killed, list...)
	return nil
}

// allReceipts returns the receipts of all engines, of killed ones too.
func (f *fleet) allReceipts(ctx context.Context) ([]history.Receipt, error) {
	var all []history.Receipt
	var errs []error
	for i := range f.Workers {
		list, err := f.receipts(ctx, i)
		all, errs = append(all, list...), append(errs, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return append(all, f.killed...), errors.Join(errs...)
}
