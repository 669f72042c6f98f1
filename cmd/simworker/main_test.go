package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"pointsman/fleet"
	"pointsman/internal/simengine"
)

func TestFlagsFillTheConfig(t *testing.T) {
	o, err := parse(strings.Fields(`--host 0.0.0.0 --port 30000 --control-port 30001 --model m --lora a,b --engine sglang
		--disaggregation-mode prefill --api-key k --max-model-len 1000 --bos --output-tokens 9 --seed 7
		--block-size 32 --kv-capacity-blocks 99 --prefill-tokens-per-s 5 --decode-ms-per-step 2.5 --max-num-batched-tokens 512
		--max-num-seqs 3 --time-scale 10 --decode-cost-per-seq 40us --decode-cost-per-context-token 7ns --prefill-doubling-tokens 8 --kv-events-port 5557 --kv-replay-port 5558 --kv-replay-buffer 10 --event-loss 0.05
		--event-delay-ms 50 --discovery-backend etcd --etcd-endpoint e:1 --etcd-prefix /p/ --etcd-lease-ttl-s 6
		--advertise-host 10.0.0.1 --request-transport nats --nats-server nats://b:1 --nats-req-idle-timeout 5 --nats-req-max-duration 60
		--nats-req-max-pending 2 --nats-number-frames --nats-deaf --forwarder-endpoint 10.0.0.1:8000 --drain-timeout 1.5
		--pd-protocol sglang-bootstrap --pd-port 8998 --pd-partner-timeout 3 --dp-size 4 --receipts-limit 5 --fault no_done --log-level debug`), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := simengine.Config{
		Host: "0.0.0.0", Port: 30000, ControlPort: 30001, AdvertiseHost: "10.0.0.1",
		Model: "m", LoRA: []string{"a", "b"}, Engine: fleet.SGLang, Role: fleet.Prefill, APIKey: "k", MaxModelLen: 1000, BOS: true,
		Cache: simengine.CacheConfig{BlockSize: 32, Capacity: 99},
		Time: simengine.TimeConfig{
			PrefillRate: 5, DecodeStep: 2500 * time.Microsecond, PerDecoder: 40 * time.Microsecond, ContextCost: 7, Doubling: 8,
			ChunkTokens: 512, MaxSeqs: 3, Scale: 10,
		},
		KV:           simengine.KVEventsConfig{Port: 5557, ReplayPort: 5558, Buffer: 10, Loss: 0.05, Delay: 50 * time.Millisecond},
		Etcd:         simengine.EtcdConfig{Endpoint: "e:1", Prefix: "/p/", TTL: 6 * time.Second},
		Kube:         simengine.KubeConfig{Refresh: 30 * time.Second},
		NATS:         simengine.NATSConfig{Server: "nats://b:1", MaxPending: 2, IdleTimeout: 5 * time.Second, MaxDuration: time.Minute, Number: true, Deaf: true},
		PD:           simengine.PDConfig{Protocol: "sglang-bootstrap", Port: 8998, Partner: 3 * time.Second, Ranks: 4},
		OutputTokens: 9, ReceiptsLimit: 5, Seed: 7, Fault: simengine.Fault{Mode: "no_done"},
		ForwarderEndpoint: "10.0.0.1:8000", DrainTimeout: 1500 * time.Millisecond,
	}
	got, _ := json.Marshal(o.engine)
	expect, _ := json.Marshal(want)
	if !bytes.Equal(got, expect) {
		t.Errorf("config\n%s\nwant\n%s", got, expect)
	}
	if o.level.String() != "DEBUG" {
		t.Errorf("log level %s", o.level)
	}
}

func TestDefaultsAreTheEnginesAndRegisterNowhere(t *testing.T) {
	o, err := parse(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := simengine.DefaultConfig()
	want.Fault.Mode = "ok"
	got, _ := json.Marshal(o.engine)
	expect, _ := json.Marshal(want)
	if !bytes.Equal(got, expect) {
		t.Errorf("config\n%s\nwant\n%s", got, expect)
	}
}

func TestBadFlagsAreNamedAllAtOnce(t *testing.T) {
	for _, tc := range []struct {
		args  string
		parts []string
	}{
		{"--no-such-flag", []string{"no-such-flag"}},
		{"stray", []string{`"stray"`}},
		{
			"--discovery-backend zk --engine gpu --disaggregation-mode both --request-transport smoke --log-level loud --block-size 0 --fault explode",
			[]string{"--discovery-backend", "--engine", "--disaggregation-mode", "--request-transport", "--log-level", "block size", "unknown fault"},
		},
	} {
		_, err := parse(strings.Fields(tc.args), io.Discard)
		for _, part := range tc.parts {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q is not in %v", tc.args, part, err)
			}
		}
	}
}

func TestHelpNamesFlagsAndFaults(t *testing.T) {
	var out bytes.Buffer
	if _, err := parse([]string{"--help"}, &out); !errors.Is(err, pflag.ErrHelp) {
		t.Fatal(err)
	}
	for _, part := range []string{"--kv-events-port", "cut_after:N", "x-sim-fault", "/receipts"} {
		if !strings.Contains(strings.ToLower(out.String()), strings.ToLower(part)) {
			t.Errorf("the help does not speak of %s", part)
		}
	}
}

func TestRunAnnouncesServesAndDrains(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"--kv-events-port", "-1", "--output-tokens", "50"}, w, io.Discard)
	}()
	line, err := bufio.NewReader(r).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var info simengine.Info
	if err = json.Unmarshal(line, &info); err != nil {
		t.Fatalf("%v in %s", err, line)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, info.URL+"/v1/completions",
		strings.NewReader(`{"prompt":"hi","stream":true,"ignore_eos":true,"max_tokens":30}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	stop() // the signal, while the stream runs
	body, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.HasSuffix(body, []byte("data: [DONE]\n\n")) {
		t.Errorf("the stream did not survive the signal: %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
