package config

import (
	"slices"
	"time"

	"pointsman/breaker"
	"pointsman/health"
	"pointsman/picker"
)

// rows is the table: one row per setting, in the order of the help text. Names,
// variables and defaults of rows that Infera has too are Infera's
// (infera/server/args.py, infera/gaie/args.py).
func (c *Config) rows() []setting {
	return slices.DeleteFunc(c.everyRow(), func(s setting) bool { return s.in&c.Program == 0 })
}

// everyRow is the table with the rows of the other program.
func (c *Config) everyRow() []setting {
	return slices.Concat(
		ofProcess(c.listening()), ofProcess(c.trustRows()), ofProcess(c.fleetRows()), tuned(c.picking()), c.prompts(), ofProcess(c.kvEvents()),
		tuned(c.requests()), tuned(c.breakerRows()), tuned(c.healthRows()), c.admissionRows(), c.reportRows(), ofProcess(c.nats()), c.natsRequests(), ofProcess(c.operating()), ofProcess(c.accepted()),
	)
}

// ofProcess marks rows that have no place in a pool's section.
func ofProcess(rows []setting) []setting {
	for i := range rows {
		rows[i].process = true
	}
	return rows
}

// tuned marks rows of rooms that take settings while they run (SetConfig), but
// for those that say "restart".
func tuned(rows []setting) []setting {
	for i := range rows {
		rows[i].live = !rows[i].restart
	}
	return rows
}

// noEnv marks settings without a variable: a Service named "infera" would make
// Kubernetes inject INFERA_PORT and INFERA_SERVICE_HOST into every Pod.
var noEnv = []string{} //nolint:gochecknoglobals // an immutable table

func (c *Config) listening() []setting {
	return []setting{
		{name: "host", env: noEnv, group: "Listening", in: Both, usage: "address to listen on", value: stringValue(&c.Host)},
		{name: "port", env: noEnv, group: "Listening", in: Forwarder, usage: "HTTP port for clients and gateways", value: portValue(&c.Port)},
		{name: "grpc-port", env: []string{"INFERA_EPP_GRPC_PORT"}, group: "Listening", in: EPP, usage: "ext-proc port", value: portValue(&c.GRPCPort)},
		{name: "grpc-health-port", env: []string{"INFERA_EPP_GRPC_HEALTH_PORT"}, group: "Listening", in: EPP, usage: "gRPC health port; 0 serves health on the ext-proc port only", value: portValue(&c.GRPCHealthPort)},
		{name: "metrics-port", group: "Listening", in: Both, usage: "port of /metrics, /health, /ready, /config/effective and /debug/picks; 0 on the EPP serves none of them, on the forwarder serves them on --port", value: portValue(&c.MetricsPort)},
		{name: "secure-serving", env: []string{"INFERA_EPP_SECURE"}, group: "Listening", in: EPP, usage: "serve ext-proc over TLS, self-signed unless --cert-path is given; --no-secure-serving for plain h2c", value: boolValue(&c.ExtProc.Secure)},
		{name: "cert-path", group: "Listening", in: Both, usage: "directory with tls.crt and tls.key, read again when they change; with it the forwarder's client port speaks TLS", value: stringValue(&c.CertPath)},
		{name: "conformance-mode", group: "Listening", in: EPP, usage: "stand in for the picker of the Gateway API Inference Extension's conformance suite: obey its header test-epp-endpoint-selection and tell who served in x-conformance-test-served-endpoint; not for production, since any client can steer requests then", value: boolValue(&c.ExtProc.Conformance)},
		{name: "model-rewrite-header", group: "Listening", in: EPP, usage: "let the request header x-gateway-model-name-rewrite replace the model in the body; only behind a gateway that sets or removes that header itself", value: boolValue(&c.ExtProc.RewriteHeader)},
		{name: "drain-delay", was: []string{"drain-delay-s"}, env: []string{"INFERA_DRAIN_DELAY", "INFERA_DRAIN_DELAY_S"}, aliases: []string{"drain_delay_s", "drain-delay-s"}, group: "Listening", in: Both, usage: "after SIGTERM: how long to say not ready and still take requests", value: seconds(c.drainDelay(), 0, time.Hour)},
		{name: "drain-timeout", env: []string{"INFERA_DRAIN_TIMEOUT"}, group: "Listening", in: Both, usage: "after that: how long open streams may go on", value: seconds(c.drainTimeout(), 0, 24*time.Hour)},
	}
}

func (c *Config) fleetRows() []setting {
	return []setting{
		{name: "discovery-backend", group: "Fleet", in: Both, usage: "where workers are found; when nothing is said, kubernetes, but inferencepool for an EPP with a --pool-name or an --endpoint-selector", value: oneOf(&c.Discovery, "kubernetes", "inferencepool", "etcd", "static")},
		{name: "static-file", group: "Fleet", in: Both, usage: "YAML list of workers for the static backend; watched", value: stringValue(&c.StaticFile)},
		{name: "etcd-endpoint", group: "Fleet", in: Both, urls: true, usage: "host, host:port or URL of etcd; several with commas", value: stringValue(&c.Etcd.Endpoint)},
		{name: "etcd-prefix", group: "Fleet", in: Both, usage: "key prefix of worker records", value: stringValue(&c.Etcd.Prefix)},
		{name: "etcd-user", group: "Fleet", in: Both, usage: "etcd user; empty for none", value: stringValue(&c.Etcd.User)},
		{name: "etcd-password", group: "Fleet", in: Both, secret: true, usage: "etcd password; prefer its variable to the flag", value: stringValue(&c.Etcd.Password)},
		{name: "etcd-ca", group: "Fleet", in: Both, usage: "CA file for https endpoints; empty for the system's", value: stringValue(&c.Etcd.CA)},
		{name: "etcd-cert", group: "Fleet", in: Both, usage: "client certificate file", value: stringValue(&c.Etcd.Cert)},
		{name: "etcd-key", group: "Fleet", in: Both, usage: "client key file", value: stringValue(&c.Etcd.Key)},
		{name: "k8s-label-selector", group: "Fleet", in: Both, usage: "which Pods may be workers; the operator's is infera.amd.com/deployment=NAME", value: stringValue(&c.Kubernetes.Selector)},
		{name: "k8s-namespace", group: "Fleet", in: Both, usage: "namespace of the Pods; empty for the one this runs in", value: stringValue(&c.Kubernetes.Namespace)},
		{name: "kubeconfig", env: noEnv, group: "Fleet", in: Both, usage: "file to find the API server with; empty for those of KUBECONFIG, ~/.kube/config, or the Pod's service account", value: stringValue(&c.Kubernetes.Kubeconfig)},
		{name: "k8s-ready", group: "Fleet", in: Both, usage: "what must be Ready: the worker's container, which is the forwarder's default, the whole Pod with its sidecar, the EPP's, or nothing (off)", value: oneOf(&c.Kubernetes.Ready, "worker", "pod", "off")},
		{name: "pool-namespace", env: []string{"INFERA_POOL_NAMESPACE", "NAMESPACE"}, group: "Fleet", in: Both, usage: "namespace of the InferencePool and its Pods; empty for the one this runs in", value: stringValue(&c.InferencePool.Namespace)},
		{name: "endpoint-selector", group: "Fleet", in: Both, usage: "label selector of the Pods, instead of an InferencePool, for clusters without that CRD", value: stringValue(&c.InferencePool.Selector)},
		{name: "endpoint-target-ports", group: "Fleet", in: Both, usage: "the ports at which these Pods serve, with commas, at most 8: each Pod and port is an endpoint", value: portsValue(&c.InferencePool.Ports)},
		{name: "endpoint-model", group: "Fleet", in: Both, usage: "the model of a pool's endpoints that carry no worker's record; empty asks them at /v1/models", value: stringValue(&c.InferencePool.Model)},
		{name: "endpoint-block-size", group: "Fleet", in: Both, usage: "KV block size of such endpoints, in tokens; 0 is what their cache events say", value: intValue(&c.InferencePool.BlockSize, 0, 1<<16)},
		{name: "endpoint-kv-events-port", group: "Fleet", in: Both, usage: "port at which such endpoints publish cache events over ZeroMQ, that of each further target port one above; 0 for none", value: intValue(&c.InferencePool.KVEventsPort, 0, 65527)},
		{name: "destination-port", env: []string{"INFERA_EPP_DEST_PORT"}, group: "Fleet", in: EPP, usage: "port of the forwarder beside each worker, for records that name none", value: portValue(&c.Picker.DestinationPort)},
	}
}

// drainDelay and drainTimeout are one setting each: a program drains one door.
func (c *Config) drainDelay() *time.Duration {
	if c.Program == Forwarder {
		return &c.Forward.DrainDelay
	}
	return &c.ExtProc.DrainDelay
}

func (c *Config) drainTimeout() *time.Duration {
	if c.Program == Forwarder {
		return &c.Forward.DrainTimeout
	}
	return &c.ExtProc.DrainTimeout
}

func (c *Config) picking() []setting {
	rows := []setting{
		{name: "router-policy", group: "Picking", in: Both, usage: "how workers are scored; see docs/policies.md", value: oneOf(&c.Picker.Policy, picker.Policies()...)},
		{name: "llm-d-weights", group: "Picking", in: Both, usage: "weights of policy llm-d's scorers for the queue, the use of KV memory, and the prefix", value: weightsValue(&c.Picker.LLMD.Queue, &c.Picker.LLMD.Usage, &c.Picker.LLMD.Prefix)},
		{name: "shadow-policy", group: "Picking", in: Both, usage: "a second policy that is asked what it would have done with each request, and changes nothing; none asks nobody", value: noneOr(&c.Picker.Shadow, picker.Policies()...)},
		{name: "kv-overlap-weight", group: "Picking", in: Both, usage: "what a prompt token to prefill costs against a token in flight; 0 ignores the cache, 10 to 20 keeps prefixes together under load", value: floatValue(&c.Picker.OverlapWeight, 0, 1e6)},
		{name: "kv-prefill-overlap-weight", group: "Picking", in: Both, usage: "the same for prefill legs; empty for --kv-overlap-weight", value: optionalFloat(&c.Picker.PrefillWeight, 0, 1e6)},
		{name: "kv-decode-overlap-weight", group: "Picking", in: Both, usage: "the same for decode legs; empty for --kv-overlap-weight", value: optionalFloat(&c.Picker.DecodeWeight, 0, 1e6)},
		{name: "pd-disagg-mode", group: "Picking", in: Both, usage: "auto forms prefill/decode pairs of the workers that have these roles; off forms none, and only mixed workers are picked", value: oneOf(&c.PDMode, "auto", "off")},
		{name: "pd-skip-prefill-tokens", group: "Picking", in: Both, usage: "a decode worker does without the prefill leg when it has at most this many prompt tokens to compute itself; 0 never", value: intValue(&c.Picker.PDSkipPrefillTokens, 0, 1<<30)},
		{name: "explain-ring", restart: true, group: "Picking", in: Both, usage: "how many of the last picks /debug/picks shows; 0 keeps none", value: intValue(&c.Picker.ExplainRing, 0, 65536)},
		{name: "session-affinity", group: "Picking", in: Both, usage: "whose requests of one conversation (X-Conversation-Id, else the body's user) stay with the workers that served the one before: pd for models with prefill/decode pairs, all, or off", value: oneOf(&c.Picker.SessionAffinity, picker.Sessions()...)},
		{name: "pd-session-ttl-sec", group: "Picking", in: Both, usage: "for how long after its last request a conversation keeps its workers; 0 for 300 s", value: seconds(&c.Picker.SessionTTL, 0, 24*time.Hour)},
		{name: "predicted-ttl-s", restart: true, group: "Picking", in: Both, usage: "for how long a picked prompt is assumed to be on its worker without a sign of it", value: seconds(&c.Index.PredictedTTL, 0, 24*time.Hour)},
		{name: "present-ttl-s", restart: true, group: "Picking", in: Both, usage: "for how long a prompt whose first token was seen is assumed to be there, unless an event says otherwise", value: seconds(&c.Index.PresentTTL, 0, 24*time.Hour)},
	}
	for _, f := range c.Picker.Latency.Fields() {
		rows = append(rows, setting{
			name: "latency-" + f.Name, group: "Picking", in: Both, usage: "least-latency: " + f.Usage,
			value: floatValue(f.Value, f.Min, f.Max),
		})
	}
	return rows
}

func (c *Config) requests() []setting {
	return []setting{
		{name: "router-mode", process: true, restart: true, group: "Requests", in: Forwarder, usage: "auto picks in this process; direct obeys the x-worker-instance-id of an endpoint picker, and picks when it is absent", value: oneOf((*string)(&c.Forward.Mode), "auto", "direct")},
		{name: "direct-failover", group: "Requests", in: Forwarder, usage: "in direct mode, try an alternate worker when the named one fails before the first byte", value: boolValue(&c.Forward.DirectFailover)},
		{name: "direct-fallback", group: "Requests", in: Forwarder, usage: "what becomes of a request whose named worker this forwarder does not know: refuse answers 503 stale_worker, policy picks by itself", value: oneOf((*string)(&c.Forward.DirectFallback), "refuse", "policy")},
		{name: "own-worker-id", process: true, restart: true, group: "Requests", in: Forwarder, usage: "the worker that this forwarder stands beside, which it serves when a gateway falls back to it; empty tells it by the address at which the gateway came", value: stringValue(&c.Forward.OwnWorker)},
		{name: "request-transport", process: true, restart: true, group: "Requests", in: Forwarder, usage: "how requests reach a worker", value: oneOf(&c.RequestTransport, "nats", "http")},
		{name: "request-max-retries", group: "Requests", in: Forwarder, usage: "further attempts on alternate workers, before the first byte only; 0 fails fast", value: intValue(&c.Forward.MaxRetries, 0, 5)},
		{name: "connect-retry-same-ep", legacy: []string{"LLB_PD_CONNECT_RETRY_SAME_EP"}, clamp: true, group: "Requests", in: Forwarder, usage: "further dials of a worker that was picked for what it holds (cached blocks, a session, a leg of a pair) and cannot be dialed; clamped to 3", value: intValue(&c.Forward.ConnectRetrySameEP, 0, 3)},
		{name: "max-attempts", group: "Requests", in: Forwarder, usage: "most dials and dispatches of a leg of a request, of whatever kind", value: intValue(&c.Forward.MaxAttempts, 1, 8)},
		{name: "retry-budget-percent", group: "Requests", in: Forwarder, usage: "repetitions of all requests together, in percent of the requests of the last 10 s", value: percent(&c.Forward.RetryBudgetShare)},
		{name: "retry-budget-floor", group: "Requests", in: Forwarder, usage: "repetitions per second on top of that", value: floatValue(&c.Forward.RetryBudgetFloor, 0, 1e6)},
		{name: "pd-prefill-failure", group: "Requests", in: Forwarder, usage: "what a failed prefill leg comes to: another pair once, then the error (retry), the decode worker computing the prompt itself (local, counted), or the error at once", value: oneOf((*string)(&c.Forward.PrefillFailure), "retry", "local", "error")},
		{name: "engine-request-id", group: "Requests", in: Forwarder, usage: "tell vLLM engines the attempt's ID, in X-Request-Id, as their own name for the request", value: boolValue(&c.Forward.EngineRequestID)},
		{name: "retry-safety", group: "Requests", in: Forwarder, usage: "pre-dispatch repeats only what cannot have run; before-first-token also repeats 5xx and connections that died before an answer. Decode legs of pairs are always pre-dispatch", value: oneOf((*string)(&c.Forward.RetrySafety), "before-first-token", "pre-dispatch")},
		{name: "name-worker", group: "Requests", in: Forwarder, usage: "tell in the response headers x-worker-instance-id and x-infera-attempts who answered and how earlier attempts ended, which the EPP reads; turn it off where clients must not learn workers' addresses", value: boolValue(&c.Forward.NameWorker)},
		{name: "inject-retention", group: "Requests", in: Forwarder, usage: "tell SGLang and vLLM workers in the bodies of chat and completion requests for how long to keep the prompt's cache, as Infera does: priority, infera_retention, kv_transfer_params.infera_retention, _infera_retention; engines with a strict schema refuse these", value: boolValue(&c.Forward.InjectRetention)},
		{name: "router-default-retention", group: "Requests", in: Forwarder, usage: "the retention of requests that give no hint, for --inject-retention", value: oneOf(&c.Forward.DefaultRetention, "none", "short", "long")},
		{name: "connect-timeout-ms", restart: true, aliases: []string{"timeoutMemberConnect"}, inherit: []string{"0"}, group: "Requests", in: Forwarder, usage: "longest wait for a connection to a worker; 0 is the default", value: millis(&c.Upstream.ConnectTimeout, 50*time.Millisecond, 30*time.Second)},
		{name: "decode-connect-timeout-ms", inherit: []string{"0"}, group: "Requests", in: Forwarder, usage: "the same for the decode leg of a pair; 0 for --connect-timeout-ms", value: millis(&c.Forward.DecodeConnectTimeout, 50*time.Millisecond, 30*time.Second)},
		{name: "backend-keepalive", restart: true, aliases: []string{"backend_keepalive_interval_sec"}, group: "Requests", in: Forwarder, usage: "silence on a worker's socket before TCP keep-alive probes it; 0 never", value: seconds(&c.Upstream.KeepAlive, 0, time.Hour)},
		{name: "upstream-protocol", restart: true, group: "Requests", in: Forwarder, usage: "HTTP version spoken to workers", value: oneOf(&c.Upstream.Protocol, "http1", "h2c")},
		{name: "stream-idle-timeout", group: "Requests", in: Forwarder, usage: "longest wait for a worker's next byte, of the answer's head too; any byte of the worker begins it anew, comments included; 0 for ever", value: seconds(&c.Forward.IdleTimeout, 0, 24*time.Hour)},
		{name: "prefill-timeout", aliases: []string{"pd_prefill_timeout_sec"}, env: []string{"INFERA_PD_PREFILL_TIMEOUT"}, legacy: []string{"LLB_PD_PREFILL_TIMEOUT_SEC"}, inherit: []string{"0"}, group: "Requests", in: Forwarder, usage: "longest wait for the prefill leg of a pair; 0 inherits", value: seconds(&c.Forward.PrefillTimeout, time.Second, time.Hour)},
		{name: "ttft-timeout", group: "Requests", in: Forwarder, usage: "longest wait for the first token of a stream, once the request is sent; 0 for as long as the worker is not idle. Unless given: 0 on mixed workers, 120 s on pairs", value: c.firstToken()},
		{name: "pd-first-token-timeout", group: "Requests", in: Forwarder, usage: "the same on pairs alone, once the decode leg is sent", value: seconds(&c.Forward.FirstTokenTimeout, 0, time.Hour)},
		{name: "request-max-duration", was: []string{"max-duration-s"}, env: []string{"INFERA_REQUEST_MAX_DURATION", "INFERA_MAX_DURATION_S"}, aliases: []string{"max_stream_duration_sec", "max_duration_s"}, group: "Requests", in: Forwarder, usage: "longest duration of a whole request; 0 for no limit", value: seconds(&c.Forward.MaxDuration, 0, 7*24*time.Hour)},
		{name: "client-write-timeout", group: "Requests", in: Forwarder, usage: "longest wait for a client to take a write; 0 for ever", value: seconds(&c.Forward.WriteTimeout, 0, time.Hour)},
		{name: "sse-keepalive", group: "Requests", in: Forwarder, usage: "silence of a stream after which its client gets an SSE comment, once the head is out; 0 for none", value: seconds(&c.Forward.KeepAlive, 0, time.Hour)},
		{name: "sse-error-done", group: "Requests", in: Forwarder, usage: "put [DONE] behind the error event that ends a broken stream, for clients that hang without it", value: boolValue(&c.Forward.ErrorDone)},
		{name: "sse-accept-finish-reason", group: "Requests", in: Forwarder, usage: "take a stream without [DONE] as complete, and add it, when every choice has told a finish reason and the stream ends properly; for engines that omit [DONE]", value: boolValue(&c.Forward.AcceptFinish)},
		{name: "min-body-rate", group: "Requests", in: Forwarder, usage: "bytes per second at which a client must send its body, on average after the first 30 s; below it 408", value: int64Value(&c.Forward.MinBodyRate, 1, 1<<30)},
		{name: "max-body", was: []string{"max-body-bytes"}, aliases: []string{"max_body_bytes", "max-body-bytes"}, group: "Requests", in: Both, usage: "largest request body in bytes; above it 413", value: c.maxBody()},
		{name: "max-buffered", was: []string{"max-buffered-bytes"}, aliases: []string{"max_buffered_bytes", "max-buffered-bytes"}, group: "Requests", in: Both, usage: "memory in bytes for the bodies of all open requests together; above it 429; 0 for no limit", value: c.maxBuffered()},
		{name: "body-chunk", group: "Requests", in: EPP, usage: "largest piece of a body handed back to the gateway, in bytes", value: intValue(&c.ExtProc.ChunkSize, 1024, 1<<30)},
		{name: "epp-fallback-endpoints", group: "Requests", in: EPP, usage: "endpoints that an answer names, the best first, for gateways that take the next when they cannot reach one (override_host with a retry policy); 1 is the best alone, which ORIGINAL_DST clusters need", value: intValue(&c.ExtProc.Endpoints, 1, 8)},
		{name: "clear-route-cache", group: "Requests", in: EPP, usage: "make the gateway select the route again after a pick", value: boolValue(&c.ExtProc.ClearRouteCache)},
		{name: "mode-override", group: "Requests", in: EPP, usage: "ask a gateway that streams or buffers response bodies to the EPP to show it no more than the headers (mode_override), where forwarders report how requests end. Envoy heeds it with allow_mode_override, and never in FULL_DUPLEX_STREAMED; who does not heed it is not asked again", value: boolValue(&c.ExtProc.ModeOverride)},
		{name: "max-in-flight", group: "Requests", in: EPP, usage: "open requests above which new ones get 429; 0 for no limit", value: intValue(&c.ExtProc.MaxInFlight, 0, 1<<30)},
	}
}

// firstToken sets both waits for a first token: that of mixed workers, which it
// reads back, and that of pairs, whose own row comes behind it.
func (c *Config) firstToken() value {
	v := seconds(&c.Forward.TTFTTimeout, 0, time.Hour)
	set := v.set
	v.set = func(text string) error {
		if err := set(text); err != nil {
			return err
		}
		c.Forward.FirstTokenTimeout = c.Forward.TTFTTimeout
		return nil
	}
	return v
}

// maxBuffered fills the one of the two doors' limits that the program has.
func (c *Config) maxBuffered() value {
	v := int64Value(&c.Forward.MaxBuffered, 0, 1<<50)
	set := v.set
	v.set = func(text string) error {
		if err := set(text); err != nil {
			return err
		}
		c.ExtProc.MaxBuffered = c.Forward.MaxBuffered
		return nil
	}
	return v
}

// maxBody fills the one of the two doors' limits that the program has.
func (c *Config) maxBody() value {
	v := int64Value(&c.Forward.MaxBody, 1<<10, 1<<30)
	set := v.set
	v.set = func(text string) error {
		if err := set(text); err != nil {
			return err
		}
		c.ExtProc.MaxBody = int(c.Forward.MaxBody)
		return nil
	}
	return v
}

func (c *Config) breakerRows() []setting {
	return []setting{
		{name: "breaker-enable", aliases: []string{"cb_enable"}, group: "Breaker", in: Both, usage: "leave workers and prefill/decode pairs out that keep failing", value: boolValue(&c.Breaker.Enable)},
		{name: "breaker-failure-threshold", group: "Breaker", in: Both, usage: "consecutive requests that do not reach a worker (refused, TLS, no responder, reset before the head) before it is left out; 0 never", value: intValue(&c.Breaker.Threshold, 0, 100)},
		{name: "origin-err-threshold", legacy: []string{"LLB_PD_ORIGIN_ERR_THRESHOLD"}, group: "Breaker", in: Both, usage: "consecutive 5xx of a worker, or first tokens that do not come in time, before it is left out; 0 never", value: intValue(&c.Breaker.OriginThreshold, 0, 100)},
		{name: "stream-err-threshold", group: "Breaker", in: Both, usage: "consecutive answers that a worker cuts after their first byte before it is left out; 0 never", value: intValue(&c.Breaker.StreamThreshold, 0, 100)},
		{name: "breaker-cooldown-s", group: "Breaker", in: Both, usage: "how long it is left out before a probe", value: seconds(&c.Breaker.Cooldown, time.Millisecond, time.Hour)},
		{name: "breaker-max-cooldown-s", group: "Breaker", in: Both, usage: "cap of the doubling after failed probes", value: seconds(&c.Breaker.MaxCooldown, time.Millisecond, 24*time.Hour)},
		{name: "breaker-probe-timeout", was: []string{"breaker-probe-timeout-s"}, env: []string{"INFERA_BREAKER_PROBE_TIMEOUT", "INFERA_BREAKER_PROBE_TIMEOUT_S"}, aliases: []string{"breaker_probe_timeout_s", "breaker-probe-timeout-s"}, group: "Breaker", in: Both, usage: "how long a probe may go unanswered before another may start", value: seconds(&c.Breaker.ProbeTimeout, time.Millisecond, time.Hour)},
		{name: "pair-breaker-threshold", group: "Breaker", in: Both, usage: "consecutive failures to hand the prompt's cache from a prefill worker to a decode worker before these two get no requests together; 0 never", value: intValue(&c.Breaker.PairThreshold, 0, 100)},
		{name: "pair-breaker-cooldown-s", group: "Breaker", in: Both, usage: "how long a pair is left out before a probe", value: seconds(&c.Breaker.PairCooldown, time.Millisecond, time.Hour)},
		{name: "pair-breaker-max-cooldown-s", group: "Breaker", in: Both, usage: "cap of the doubling after failed probes of a pair", value: seconds(&c.Breaker.PairMaxCooldown, time.Millisecond, 24*time.Hour)},
		{name: "pair-canary", group: "Breaker", in: Both, usage: "who tries a pair that was left out, or one of whose workers has come (back): off is a client's request, on-recovery a request for one token of a forwarder that picks itself, one a second at most (--router-mode auto; elsewhere it is refused)", value: oneOf(&c.Breaker.PairCanary, breaker.Canaries()...)},
		{name: "busy-ttl-ms", group: "Breaker", in: Both, usage: "how long a worker that said 429 is left out; 0 not at all", value: millis(&c.Breaker.BusyTTL, 0, time.Minute)},
	}
}

func (c *Config) healthRows() []setting {
	return []setting{
		{name: "health-probe", aliases: []string{"monitor"}, group: "Health probes", in: Both, usage: "ask workers whether they are there, and leave out who is not; when nothing is said, true but for --discovery-backend kubernetes, where the kubelet's readiness counts. A forwarder in direct mode begins when it first has to pick", value: boolValue(&c.Health.Enabled)},
		{name: "health-probe-type", aliases: []string{"probetype"}, group: "Health probes", in: Both, usage: "tcp connects; http and https GET the path and want 2xx; nats asks at the worker's ping subject, and leaves workers without one, and the EPP, alone; none asks nothing", value: oneOf((*string)(&c.Health.Type), health.Types()...)},
		{name: "health-probe-path", aliases: []string{"probereq"}, group: "Health probes", in: Both, usage: "what http and https probes GET", value: stringValue(&c.Health.Path)},
		{name: "health-probe-port", aliases: []string{"probeport"}, group: "Health probes", in: Both, usage: "port of tcp, http and https probes; 0 is the worker's own", value: portValue(&c.Health.Port)},
		{name: "health-probe-interval", group: "Health probes", in: Both, usage: "from one probe of a worker to the next, give or take a tenth", value: seconds(&c.Health.Interval, 500*time.Millisecond, 300*time.Second)},
		{name: "health-probe-timeout", aliases: []string{"probeTimeout"}, group: "Health probes", in: Both, usage: "longest a probe may take; at most the interval", value: seconds(&c.Health.Timeout, 100*time.Millisecond, time.Minute)},
		{name: "health-probe-retries", aliases: []string{"probeRetries"}, group: "Health probes", in: Both, usage: "failures in a row beyond the first that make a worker down; no request is repeated by it", value: intValue(&c.Health.Retries, 0, 10)},
		{name: "health-probe-rise", group: "Health probes", in: Both, usage: "successes in a row that make it up again", value: intValue(&c.Health.Rise, 1, 10)},
	}
}

// exactMode takes LoxiLB's numbers too: 0 off, 1 for pools with pairs, 3 for
// those without; which a pool is, its workers tell.
func (c *Config) exactMode() value {
	v := oneOf(&c.KVExact, "auto", "on", "off")
	set := v.set
	v.set = func(text string) error {
		switch text {
		case "0", "false":
			text = "off"
		case "1", "3", "true":
			text = "on"
		}
		return set(text)
	}
	return v
}

func (c *Config) prompts() []setting {
	return []setting{
		{name: "kv-exact-mode", aliases: []string{"kvExactMode"}, group: "Prompts", in: Both, usage: "off picks without the workers' cache events, whatever --kv-event-transport says; on demands them; auto goes by --kv-event-transport. LoxiLB's 0 is off, 1 and 3 are on", value: c.exactMode()},
		{name: "tokenizer", group: "Prompts", in: Both, usage: "where token ids come from: this process, when --router-tokenizer-path is on this machine, else and for what it declines a worker's /tokenize (remote); none hashes bytes; auto is remote when there are KV events to match", value: oneOf(&c.Tokenizer, "auto", "remote", "none")},
		{name: "tokenize-max-bytes", group: "Prompts", in: Both, usage: "longest prompt, rendered, that is tokenized in this process; a longer one is approximated, with the reason too_long", value: intValue(&c.TokenizeMaxBytes, 1<<10, 64<<20)},
		{name: "tokenize-timeout-ms", group: "Prompts", in: Both, usage: "longest wait for a worker's /tokenize; then the prompt is approximated", value: millis(&c.TokenizeTimeout, time.Millisecond, 10*time.Second)},
		{name: "router-tokenizer-path", group: "Prompts", in: Both, usage: "tokenizer.json, or directory of one model, or of many as PATH/MODEL, whose files the engines use too; prompts are then tokenized in this process. A model id that is no path here leaves it to the workers", value: stringValue(&c.TokenizerPath)},
		{name: "model-aliases", group: "Prompts", in: Both, usage: "NAME=MODEL with commas: further names of models, for workers whose records do not list model_aliases; vLLM's records have only the first of --served-model-name", value: mapValue(&c.Names.Aliases)},
		{name: "lora-adapters", group: "Prompts", in: Both, usage: "NAME=MODEL with commas: LoRA adapters that all workers of a model serve under a name of their own, for records that do not list lora_adapters", value: mapValue(&c.Names.Adapters)},
		{name: "audit-window", group: "Prompts", in: Both, usage: "how many comparisons with an engine's own token counts a verdict of the audit looks back at", value: intValue(&c.Audit.Window, 1, 4096)},
		{name: "audit-share", group: "Prompts", in: Both, usage: "share of them that must differ before the source of those token ids is left alone: first the files, for a worker's /tokenize, then that, for approximated prompts", value: floatValue(&c.Audit.Share, 1e-3, 1)},
		{name: "audit-retry-s", group: "Prompts", in: Both, usage: "until a source that was left alone is tried on a few prompts; doubles with each failure, to an hour", value: seconds(&c.Audit.Retry, time.Second, time.Hour)},
	}
}

func (c *Config) kvEvents() []setting {
	return []setting{
		{name: "kv-event-transport", group: "KV events", in: Both, usage: "how workers' cache events arrive; none predicts from our own picks. When neither this nor --nats-server is given and no broker answers within 10 s, the publishers are followed that workers' records name, as with zmq", value: oneOf(&c.KVEventTransport, "nats", "zmq", "none")},
		{name: "kv-event-topic", group: "KV events", in: Both, usage: "ZMQ topic prefix to subscribe to", value: stringValue(&c.KVEventTopic)},
		{name: "kv-replay-port-offset", group: "KV events", in: Both, usage: "a publisher's replay port less its event port; 0 for publishers without replay", value: intValue(&c.KVReplayOffset, -65535, 65535)},
	}
}

func (c *Config) nats() []setting {
	return []setting{
		{name: "nats-server", env: []string{"NATS_SERVER", "NATS_URL"}, group: "NATS", in: Both, urls: true, usage: "URL of the broker, with user and password or token if need be; several with commas", value: stringValue(&c.NATS.Server)},
		{name: "nats-creds", group: "NATS", in: Both, usage: "credentials file (.creds)", value: stringValue(&c.NATS.Credentials)},
		{name: "nats-nkey", group: "NATS", in: Both, usage: "file with an nkey seed", value: stringValue(&c.NATS.NkeySeed)},
		{name: "nats-token", group: "NATS", in: Both, secret: true, usage: "authentication token; prefer its variable to the flag", value: stringValue(&c.NATS.Token)},
		{name: "nats-ca", group: "NATS", in: Both, usage: "CA file; empty for the system's", value: stringValue(&c.NATS.CA)},
		{name: "nats-cert", group: "NATS", in: Both, usage: "client certificate file", value: stringValue(&c.NATS.Cert)},
		{name: "nats-key", group: "NATS", in: Both, usage: "client key file", value: stringValue(&c.NATS.Key)},
	}
}

func (c *Config) natsRequests() []setting {
	return []setting{
		{name: "nats-req-idle-timeout", group: "NATS", in: Forwarder, usage: "longest wait for the next reply chunk; then 504 and a cancel; 0 for ever", value: seconds(&c.NATS.IdleTimeout, 0, 7*24*time.Hour)},
		{name: "nats-req-max-duration", group: "NATS", in: Forwarder, usage: "longest duration of a whole request; then 504 and a cancel; 0 for no limit", value: seconds(&c.NATS.MaxDuration, 0, 7*24*time.Hour)},
		{name: "nats-req-max-pending", group: "NATS", in: Forwarder, usage: "requests that a worker may have unanswered; above it 429; 0 for no limit", value: intValue(&c.NATS.MaxPending, 0, 1e6)},
	}
}

func (c *Config) operating() []setting {
	return []setting{
		{name: "config", group: "Operating", in: Both, usage: "YAML file of settings, flag names as keys; under pools, a section for each pool, which beats flags. Watched: what can change while running does, for new requests", value: stringValue(&c.File)},
		{name: "config-file", group: "Operating", in: EPP, usage: "EndpointPickerConfig of the Gateway API Inference Extension or llm-d, whose plugins are mapped to settings here (docs/inferencepool.md); whatever else says something of these wins, LoxiLB's variables apart", value: stringValue(&c.PickerConfigFile)},
		{name: "config-text", group: "Operating", in: EPP, usage: "the same as text, instead of a file", value: stringValue(&c.PickerConfigText)},
		{name: "pool-name", group: "Operating", in: Both, usage: "the InferencePool that an EPP picks for, and which section of the file's pools is this program's", value: stringValue(&c.Pool)},
		{name: "log-level", group: "Operating", in: Both, usage: "least level that is logged", value: oneOf(&c.LogLevel, "debug", "info", "warn", "error")},
		{name: "log-format", group: "Operating", in: Both, usage: "format of log lines", value: oneOf(&c.LogFormat, "json", "text")},
		{name: "admin-token", group: "Operating", in: Both, secret: true, usage: "bearer token for /config and /debug from other machines; without it they answer this machine only", value: stringValue(&c.AdminToken)},
	}
}

// accepted are the flags of Infera's command lines that have nothing to do
// here. They are read, so that a command line works, and a warning says so.
func (c *Config) accepted() []setting {
	rows := c.foreign()
	row := func(name string, env []string, in Program, why string) setting {
		text := c.ignored[name]
		if text == nil {
			text = new(string)
			c.ignored[name] = text
		}
		return setting{name: name, env: env, group: "Operating", in: in, usage: "Infera's.", unused: why, value: stringValue(text)}
	}
	flag := func(name string, env []string, in Program, why string) setting {
		s := row(name, env, in, why)
		s.value.kind = "bool"
		return s
	}
	return append(rows,
		row("router-backend", []string{"INFERA_ROUTER_BACKEND"}, Forwarder, "there is one router"),
		row("migration-limit", []string{"INFERA_MIGRATION_LIMIT"}, Forwarder, "a generation is never continued on another worker"),
		row("kvd-socket-path", nil, Forwarder, "cache pre-warming is the engine side's"),
		flag("enable-profiling", []string{"INFERA_ENABLE_PROFILING"}, Forwarder, "ask the engine itself"),
		flag("enable-scaling-api", []string{"INFERA_ENABLE_SCALING_API"}, Forwarder, "scale through Kubernetes"),
	)
}
