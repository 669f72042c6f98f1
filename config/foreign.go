package config

// foreign are the flags of the endpoint pickers of the Gateway API Inference
// Extension and llm-d that have nothing to do here (GIE pkg/epp/server/options.go,
// llm-d-router pkg/epp/server/options.go, controller-runtime's zap flags). They
// are read, so that a command line works, and a warning says so.
func (c *Config) foreign() []setting {
	const (
		log     = "--log-level and --log-format say what is logged"
		scrape  = "workers are not scraped for load"
		metrics = "--admin-token guards what is not for everyone; /metrics is a matter of the network policy"
	)
	var out []setting
	add := func(kind, why string, names ...string) {
		for _, name := range names {
			text := c.ignored[name]
			if text == nil {
				text = new(string)
				c.ignored[name] = text
			}
			s := setting{name: name, env: noEnv, group: "Operating", in: EPP, usage: "Other endpoint pickers'.", unused: why, value: stringValue(text)}
			s.value.kind = kind
			out = append(out, s)
		}
	}
	add("string", log, "v", "zap-encoder", "zap-log-level", "zap-stacktrace-level", "zap-time-encoding")
	out[0].short = "v"
	add("bool", log, "zap-devel")
	add("string", "InferencePools are of the group inference.networking.k8s.io", "pool-group")
	add("bool", "every replica is active", "ha-enable-leader-election")
	add("string", scrape, "refresh-metrics-interval", "refresh-prometheus-metrics-interval", "metrics-staleness-threshold",
		"total-queued-requests-metric", "total-running-requests-metric", "kv-cache-usage-percentage-metric", "lora-info-metric", "cache-info-metric",
		"model-server-metrics-scheme", "model-server-metrics-path", "model-server-metrics-port")
	add("bool", scrape, "model-server-metrics-https-insecure-skip-verify")
	add("bool", metrics, "metrics-endpoint-auth")
	add("string", metrics, "metrics-client-ca-file", "metrics-cert-dir")
	add("bool", "no traces are emitted", "tracing")
	add("bool", "health is always served", "health-checking")
	add("bool", "profiles are not served", "enable-pprof")
	add("bool", "certificates are always read again when they change", "enable-cert-reload")
	add("bool", "a subset hint always counts", "disable-endpoint-subset-filter")
	add("bool", "the costs of each pick are at /debug/picks", "emit-endpoint-scores")
	add("bool", "there are no experimental plugins", "allow-experimental-plugins")
	add("bool", "streams are always counted", "enable-grpc-stream-metrics")
	add("string", "messages are taken up to twice the largest body", "grpc-max-recv-msg-size", "grpc-max-send-msg-size")
	return out
}
