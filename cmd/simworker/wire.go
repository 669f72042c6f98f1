package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"pointsman/fleet"
	"pointsman/internal/simengine"
)

// options is what the command line says.
type options struct {
	engine simengine.Config
	relay  simengine.RelayConfig // off while Server is empty; the engine knows the rest
	level  slog.Level
}

// names are the flags whose values need a translation.
type names struct {
	discovery, engine, role, transport, level, fault string
	events, bucket                                   string
	decodeMS, delayMS, drainS, ttlS                  float64
	natsIdleS, natsMaxS, partnerS                    float64
	kube                                             kubeNames
}

// parse reads the command line. It returns pflag.ErrHelp after printing help.
func parse(args []string, out io.Writer) (options, error) {
	o := options{engine: simengine.DefaultConfig()}
	var n names
	fs := pflag.NewFlagSet("simworker", pflag.ContinueOnError)
	fs.SetOutput(out)
	fs.SortFlags = false
	fs.Usage = func() { usage(out, fs) }
	bind(fs, &o.engine, &n)
	if err := fs.Parse(args); err != nil {
		return options{}, err
	}
	if fs.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q: see --help", fs.Arg(0))
	}
	return o, n.apply(&o)
}

// bind names the fields of c.
func bind(fs *pflag.FlagSet, c *simengine.Config, n *names) {
	fs.StringVar(&c.Host, "host", c.Host, "address to bind; 0.0.0.0 for every one")
	fs.IntVar(&c.Port, "port", c.Port, "HTTP port; 0 picks a free one")
	fs.IntVar(&c.ControlPort, "control-port", c.ControlPort, "port for /receipts and /control that no fault touches; -1 for none")
	fs.StringVar(&n.level, "log-level", "info", "debug, info, warn or error")

	fs.StringVar(&c.Model, "model", c.Model, "served model name")
	fs.StringSliceVar(&c.LoRA, "lora", nil, "adapters served under their own names")
	fs.StringVar(&n.engine, "engine", string(c.Engine), "vllm, sglang or atom: decides the KV event encoding")
	fs.StringVar(&n.role, "disaggregation-mode", c.Role.String(), "mixed, prefill or decode")
	fs.StringVar(&c.PD.Protocol, "pd-protocol", "", "how a prefill and a decode engine meet: "+strings.Join(simengine.Protocols(), ", ")+"; empty checks no leg")
	fs.IntVar(&c.PD.Port, "pd-port", 0, "port at which decode engines ask for KV caches; 0 picks a free one")
	fs.Float64Var(&n.partnerS, "pd-partner-timeout", c.PD.Partner.Seconds(), "seconds that a leg waits for the other one")
	fs.IntVar(&c.PD.Ranks, "dp-size", 0, "registered data-parallel size of an engine with --pd-protocol; 0 for none")
	fs.StringVar(&c.APIKey, "api-key", "", "bearer token demanded under /v1")
	fs.IntVar(&c.MaxModelLen, "max-model-len", c.MaxModelLen, "tokens of prompt plus output")
	fs.StringVar(&c.Files, "model-files", "", "directory of a model's tokenizer.json and chat template, used instead of the built-in ones")
	fs.BoolVar(&c.BOS, "bos", c.BOS, "the built-in tokenizer adds a begin-of-text token to plain prompts")
	fs.IntVar(&c.OutputTokens, "output-tokens", c.OutputTokens, "mean output length when a request sets none")
	fs.Uint64Var(&c.Seed, "seed", 0, "seed of the engine's block hashes and of chance; 0 draws one")

	fs.IntVar(&c.Cache.BlockSize, "block-size", c.Cache.BlockSize, "tokens per KV block")
	fs.IntVar(&c.Cache.Capacity, "kv-capacity-blocks", c.Cache.Capacity, "KV blocks")
	fs.Float64Var(&c.Time.PrefillRate, "prefill-tokens-per-s", c.Time.PrefillRate, "prompt tokens computed per second")
	fs.Float64Var(&n.decodeMS, "decode-ms-per-step", ms(c.Time.DecodeStep), "milliseconds per step")
	fs.DurationVar(&c.Time.PerDecoder, "decode-cost-per-seq", c.Time.PerDecoder, "added to a step per decoding sequence")
	fs.DurationVar(&c.Time.ContextCost, "decode-cost-per-context-token", c.Time.ContextCost, "added to a step per token of its decoders' context")
	fs.IntVar(&c.Time.Doubling, "prefill-doubling-tokens", c.Time.Doubling, "position at which a prompt token costs twice the first; 0 for never")
	fs.IntVar(&c.Time.ChunkTokens, "max-num-batched-tokens", c.Time.ChunkTokens, "tokens per step, prefill and decode together")
	fs.IntVar(&c.Time.MaxSeqs, "max-num-seqs", c.Time.MaxSeqs, "sequences that run at once")
	fs.Float64Var(&c.Time.Scale, "time-scale", c.Time.Scale, "simulated seconds per real second")

	fs.IntVar(&c.KV.Port, "kv-events-port", c.KV.Port, "ZMQ PUB port; 0 picks a free one, -1 publishes nothing")
	fs.IntVar(&c.KV.ReplayPort, "kv-replay-port", c.KV.ReplayPort, "ZMQ ROUTER port for replay; 0 picks a free one, -1 for none")
	fs.IntVar(&c.KV.Buffer, "kv-replay-buffer", c.KV.Buffer, "event batches kept for replay")
	fs.Float64Var(&c.KV.Loss, "event-loss", c.KV.Loss, "share of event batches that are not sent, 0 to 1")
	fs.StringVar(&n.events, "kv-event-transport", "zmq", "zmq or nats: nats relays the events to --nats-server, too, as Infera's launcher does")
	fs.StringVar(&n.bucket, "kv-relay-bucket", "infera", "what the relay writes into its bucket: infera (vLLM's blocks only), whole or off")
	fs.Float64Var(&n.delayMS, "event-delay-ms", ms(c.KV.Delay), "how late event batches are sent")

	fs.StringVar(&n.discovery, "discovery-backend", "none", "etcd, kubernetes (an annotation of the Pod $POD_NAME) or none")
	fs.StringVar(&c.Etcd.Endpoint, "etcd-endpoint", "127.0.0.1:2379", "host, host:port or URL")
	fs.StringVar(&c.Etcd.Prefix, "etcd-prefix", c.Etcd.Prefix, "key prefix")
	fs.Float64Var(&n.ttlS, "etcd-lease-ttl-s", c.Etcd.TTL.Seconds(), "lease, whole seconds")
	n.kube.bind(fs, &c.Kube)
	fs.StringVar(&c.AdvertiseHost, "advertise-host", "", "registered host; empty takes $POD_IP with kubernetes, else --host")
	fs.StringVar(&n.transport, "request-transport", "http", "http or nats: how requests are announced to come")
	fs.StringVar(&c.NATS.Server, "nats-server", "nats://127.0.0.1:4222", "broker of --request-transport nats and --kv-event-transport nats")
	fs.Float64Var(&n.natsIdleS, "nats-req-idle-timeout", c.NATS.IdleTimeout.Seconds(), "seconds that the engine may be silent; 0 for ever")
	fs.Float64Var(&n.natsMaxS, "nats-req-max-duration", 0, "seconds that a request may take; 0 for no limit")
	fs.IntVar(&c.NATS.MaxPending, "nats-req-max-pending", 0, "above 0 requests come through JetStream, as Infera's throttle has it")
	fs.BoolVar(&c.NATS.Number, "nats-number-frames", false, "number the reply frames")
	fs.BoolVar(&c.NATS.Deaf, "nats-deaf", false, "register, but do not subscribe")
	fs.StringVar(&c.ForwarderEndpoint, "forwarder-endpoint", "", "host:port of this worker's forwarder, registered beside Infera's fields")
	fs.Float64Var(&n.drainS, "drain-timeout", c.DrainTimeout.Seconds(), "seconds that SIGTERM waits for running requests")

	fs.IntVar(&c.ReceiptsLimit, "receipts-limit", c.ReceiptsLimit, "receipts kept")
	fs.StringVar(&n.fault, "fault", "ok", "fault mode at start, see below")
}

// apply translates the values that are not plain.
func (n *names) apply(o *options) error {
	c := &o.engine
	var errs []error
	switch n.discovery {
	case "etcd":
	case "none":
		c.Etcd.Endpoint = ""
	case "kubernetes":
		c.Etcd.Endpoint = ""
		n.kube.apply(c, os.Getenv)
	default:
		errs = append(errs, fmt.Errorf("--discovery-backend %q: give etcd, kubernetes or none", n.discovery))
	}
	switch c.Engine = fleet.Engine(n.engine); c.Engine {
	case fleet.VLLM, fleet.SGLang, fleet.ATOM:
	default:
		errs = append(errs, fmt.Errorf("--engine %q: give vllm, sglang or atom", n.engine))
	}
	role, err := roleNamed(n.role)
	if err != nil {
		errs = append(errs, err)
	}
	c.Role = role
	if err := n.applyRelay(o); err != nil {
		errs = append(errs, err)
	}
	switch n.transport {
	case "nats":
	case "http":
		c.NATS.Server = ""
	default:
		errs = append(errs, fmt.Errorf("--request-transport %q: give http or nats", n.transport))
	}
	c.NATS.IdleTimeout = scaled(n.natsIdleS, time.Second)
	c.NATS.MaxDuration = scaled(n.natsMaxS, time.Second)
	if err := o.level.UnmarshalText([]byte(n.level)); err != nil {
		errs = append(errs, fmt.Errorf("--log-level %q: give debug, info, warn or error", n.level))
	}
	c.Time.DecodeStep = scaled(n.decodeMS, time.Millisecond)
	c.KV.Delay = scaled(n.delayMS, time.Millisecond)
	c.PD.Partner = scaled(n.partnerS, time.Second)
	c.Etcd.TTL = scaled(n.ttlS, time.Second)
	c.DrainTimeout = scaled(n.drainS, time.Second)
	c.Fault.Mode = n.fault
	return errors.Join(append(errs, c.Validate())...)
}

// applyRelay must come before the broker is taken from an engine whose requests
// come over HTTP.
func (n *names) applyRelay(o *options) error {
	var errs []error
	switch n.events {
	case "zmq":
	case "nats":
		o.relay.Server, o.relay.Engine = o.engine.NATS.Server, o.engine.Engine
		if o.engine.KV.Port < 0 {
			errs = append(errs, errors.New("--kv-event-transport nats relays what ZMQ brings: give --kv-events-port 0 or more"))
		}
	default:
		errs = append(errs, fmt.Errorf("--kv-event-transport %q: give zmq or nats", n.events))
	}
	switch n.bucket {
	case "infera":
		o.relay.Bucket = simengine.BucketAsInfera
	case "whole":
		o.relay.Bucket = simengine.BucketWhole
	case "off":
		o.relay.Bucket = simengine.BucketOff
	default:
		errs = append(errs, fmt.Errorf("--kv-relay-bucket %q: give infera, whole or off", n.bucket))
	}
	return errors.Join(errs...)
}

func roleNamed(s string) (fleet.Role, error) {
	for _, r := range []fleet.Role{fleet.Mixed, fleet.Prefill, fleet.Decode} {
		if r.String() == s {
			return r, nil
		}
	}
	return fleet.Mixed, fmt.Errorf("--disaggregation-mode %q: give mixed, prefill or decode", s)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func scaled(v float64, unit time.Duration) time.Duration { return time.Duration(v * float64(unit)) }

// usage prints help.
func usage(w io.Writer, fs *pflag.FlagSet) {
	_, _ = fmt.Fprintf(w, `simworker is a simulated vLLM or SGLang worker.

It serves /v1/chat/completions, /v1/completions, /v1/messages, /v1/embeddings,
/v1/models, /tokenize, /health and /metrics; publishes KV events over ZMQ;
takes requests over NATS; registers in etcd or at its Pod. GET /receipts says what it did, POST /control/fault
{"mode","count","probability","for_ms"}, the request header %s and the body field %s
make it misbehave, POST /control/nats {"deaf":true} takes it off its broker, POST
/control/pair {"host","broken"} makes KV transfers from that prefill engine fail, POST
/control/clear-cache empties its cache, GET /control/info
describes it (so does the line of JSON on stdout at start).

Flags:
%s
Fault modes:
%s`, simengine.FaultHeader, simengine.FaultField, fs.FlagUsages(), simengine.FaultHelp())
}

// announce prints the worker's description as one line of JSON.
func announce(w io.Writer, e *simengine.Engine) error {
	return json.NewEncoder(w).Encode(e.Info())
}
