package simengine

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"pointsman/fleet"
)

// Config is one simulated worker. Start from [DefaultConfig]: the zero value is
// not valid.
type Config struct {
	Host          string // address to bind; "" means every address. Default 127.0.0.1
	Port          int    // HTTP port; 0 picks a free one
	ControlPort   int    // second HTTP port that no fault touches; 0 picks a free one, -1 (default) none
	AdvertiseHost string // host that is registered; "" means Host

	Model       string       // served model name; another name in a request is a 404
	LoRA        []string     // adapters served under their own names. Default none
	Engine      fleet.Engine // decides the KV event encoding. Default vllm
	Role        fleet.Role   // registered disaggregation mode. Default mixed
	APIKey      string       // bearer token required under /v1; "" requires none
	MaxModelLen int          // tokens of prompt plus output. Default 131072
	BOS         bool         // the engine's own tokenizer adds a begin-of-text token. Default false
	Files       string       // directory of a model's tokenizer.json and chat template, used instead of the engine's own; "" for none

	Cache CacheConfig
	Time  TimeConfig
	KV    KVEventsConfig
	Etcd  EtcdConfig
	Kube  KubeConfig
	NATS  NATSConfig
	PD    PDConfig

	OutputTokens  int    // mean output length when the request does not bound it. Default 128
	ReceiptsLimit int    // receipts kept; the oldest leave first. Default 20000
	Seed          uint64 // seed of engine hashes and of chance; 0 (default) draws one per process

	Fault Fault // in force from the start. Default none

	ForwarderEndpoint string // host:port of this worker's forwarder, registered beside Infera's fields; "" for none

	Log *slog.Logger // nil discards

	DrainTimeout time.Duration // how long Drain waits for running requests. Default 30 s
}

// CacheConfig is the block KV cache.
type CacheConfig struct {
	BlockSize int // tokens per block. Default 16
	Capacity  int // blocks. Default 65536 (1 Mi tokens)
}

// TimeConfig is the time model: each step costs DecodeStep, the time of its
// prefill tokens, and what its decoders add (findings "policy" §1).
type TimeConfig struct {
	PrefillRate float64       // prompt tokens per second. Default 16000
	DecodeStep  time.Duration // fixed cost of a step. Default 10 ms
	PerDecoder  time.Duration // added per decoding sequence. Default 30 µs
	ContextCost time.Duration // added per token of context of each decoding sequence. Default 40 ns
	Doubling    int           // position at which a prompt token costs twice as much as the first; 0 for never. Default 50000
	ChunkTokens int           // tokens per step, shared by prefill and decode. Default 2048
	MaxSeqs     int           // sequences that run at once; others queue in order. Default 64
	Scale       float64       // simulated seconds per real second. Default 1
}

// KVEventsConfig is the event publisher.
type KVEventsConfig struct {
	Port       int           // ZMQ PUB port; 0 (default) picks a free one, -1 publishes nothing
	ReplayPort int           // ZMQ ROUTER port for replay; 0 picks a free one, -1 (default) offers none
	Buffer     int           // batches kept for replay. Default 10000
	Loss       float64       // share of batches that are numbered and buffered but not sent. Default 0
	Delay      time.Duration // how late each batch is sent. Default 0
}

// EtcdConfig is the registration. It is off while Endpoint is empty.
type EtcdConfig struct {
	Endpoint string        // host, host:port or URL; "" registers nowhere
	Prefix   string        // key prefix. Default /infera/workers/
	TTL      time.Duration // lease. Default 30 s; the heartbeat is max(TTL/3, 1 s)
}

// DefaultConfig returns a worker of one mid-size GPU, bound to the loopback
// address on a free port, that publishes events and registers nowhere.
func DefaultConfig() Config {
	return Config{
		Host:        "127.0.0.1",
		ControlPort: -1,
		Model:       "sim-model",
		Engine:      fleet.VLLM,
		MaxModelLen: 131072,
		Cache:       CacheConfig{BlockSize: 16, Capacity: 65536},
		Time: TimeConfig{
			PrefillRate: 16000, DecodeStep: 10 * time.Millisecond, PerDecoder: 30 * time.Microsecond,
			ContextCost: 40 * time.Nanosecond, Doubling: 50_000,
			ChunkTokens: 2048, MaxSeqs: 64, Scale: 1,
		},
		KV:            KVEventsConfig{ReplayPort: -1, Buffer: 10000},
		Etcd:          EtcdConfig{Prefix: "/infera/workers/", TTL: 30 * time.Second},
		Kube:          KubeConfig{Refresh: 30 * time.Second},
		NATS:          NATSConfig{IdleTimeout: 900 * time.Second},
		PD:            PDConfig{Partner: 10 * time.Second},
		OutputTokens:  128,
		ReceiptsLimit: 20000,
		DrainTimeout:  30 * time.Second,
	}
}

// Validate returns every fault of c, joined.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	for _, p := range []struct {
		name      string
		port, min int
	}{{"port", c.Port, 0}, {"control port", c.ControlPort, -1}, {"kv events port", c.KV.Port, -1}, {"kv replay port", c.KV.ReplayPort, -1}} {
		check(p.port >= p.min && p.port <= 65535, "%s %d: give %d to 65535", p.name, p.port, p.min)
	}
	check(c.Model != "", "model: give a name")
	check(c.Engine != "", "engine: give vllm, sglang or atom")
	check(c.MaxModelLen >= 1, "max model length %d: give at least 1", c.MaxModelLen)
	check(c.Cache.BlockSize >= 1, "block size %d: give at least 1", c.Cache.BlockSize)
	check(c.Cache.Capacity >= 1, "cache capacity %d blocks: give at least 1", c.Cache.Capacity)
	check(c.Time.PrefillRate > 0, "prefill rate %g tokens/s: give more than 0", c.Time.PrefillRate)
	check(c.Time.DecodeStep >= 0 && c.Time.PerDecoder >= 0 && c.Time.ContextCost >= 0 && c.Time.Doubling >= 0, "decode time: give 0 or more")
	check(c.Time.ChunkTokens >= 1, "chunk of %d tokens: give at least 1", c.Time.ChunkTokens)
	check(c.Time.MaxSeqs >= 1, "max sequences %d: give at least 1", c.Time.MaxSeqs)
	check(c.Time.Scale > 0, "time scale %g: give more than 0", c.Time.Scale)
	check(c.KV.Buffer >= 1, "replay buffer of %d batches: give at least 1", c.KV.Buffer)
	check(c.KV.Loss >= 0 && c.KV.Loss <= 1, "event loss %g: give 0 to 1", c.KV.Loss)
	check(c.KV.Delay >= 0, "event delay %s: give 0 or more", c.KV.Delay)
	check(c.Etcd.Endpoint == "" || c.Etcd.TTL >= time.Second, "lease of %s: give at least 1s", c.Etcd.TTL)
	check(c.Etcd.Endpoint == "" || c.Kube.API == "", "registration in etcd and at a Pod: give one of them")
	if err := c.Kube.validate(); err != nil {
		errs = append(errs, err)
	}
	check(c.PD.Protocol == "" || slices.Contains(Protocols(), c.PD.Protocol), "pd protocol %q: give one of %s", c.PD.Protocol, strings.Join(Protocols(), ", "))
	check(c.PD.Protocol == "" || c.Role != fleet.Mixed, "pd protocol %s: give the role prefill or decode", c.PD.Protocol)
	check(c.PD.Protocol == "" || c.PD.Partner > 0, "pd partner timeout %s: give more than 0", c.PD.Partner)
	check(c.PD.Port >= 0 && c.PD.Port <= 65535, "pd port %d: give 0 to 65535", c.PD.Port)
	check(c.PD.Ranks >= 0 && (c.PD.Ranks == 0 || c.PD.Protocol != ""), "%d ranks: give 0 or more, and a pd protocol", c.PD.Ranks)
	check(c.NATS.MaxPending >= 0 && c.NATS.IdleTimeout >= 0 && c.NATS.MaxDuration >= 0, "nats limits: give 0 or more")
	check(c.OutputTokens >= 1, "output tokens %d: give at least 1", c.OutputTokens)
	check(c.ReceiptsLimit >= 1, "receipts limit %d: give at least 1", c.ReceiptsLimit)
	if _, err := new(faults).set(c.Fault, time.Time{}); err != nil {
		errs = append(errs, err)
	}
	check(c.DrainTimeout >= 0, "drain timeout %s: give 0 or more", c.DrainTimeout)
	return errors.Join(errs...)
}
