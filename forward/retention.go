package forward

import (
	"pointsman/fleet"
	"pointsman/prompt"
)

// The words of [Config.DefaultRetention], Infera's.
const (
	retentionNone  = "none"
	retentionShort = "short"
	retentionLong  = "long"
)

func (c Config) defaultRetention() prompt.Retention {
	switch c.DefaultRetention {
	case retentionNone:
		return prompt.RetentionNone
	case retentionShort:
		return prompt.RetentionShort
	}
	return prompt.RetentionLong
}

// retained returns body as it goes to w: when [Config.InjectRetention] is on,
// with the fields by which Infera tells its engines for how long to keep the
// prompt's cache. The client's hint counts, else the configured default.
//
// Engines with a strict schema and foreign KV connectors may refuse the fields,
// so they are off unless asked for (Infera defect H5).
func (x *exchange) retained(w *fleet.Worker, body []byte) []byte {
	if !x.cfg.InjectRetention || x.kind != prompt.Chat && x.kind != prompt.Completions {
		return body
	}
	level := x.scan.Retention
	if level == prompt.RetentionUnset {
		level = x.cfg.defaultRetention()
	}
	return withRetention(w.Engine, level, body)
}

// withRetention adds what Infera's engine_priority.py adds for the engine; other
// engines' bodies are left as they are, and so is what is no object.
//
// A priority of the client's own is kept. Infera's own fields are replaced: a
// client would steer the engine with them.
func withRetention(engine fleet.Engine, level prompt.Retention, body []byte) []byte {
	if engine != fleet.SGLang && engine != fleet.VLLM {
		return body
	}
	o, err := ParseObject(body)
	if err != nil {
		return body
	}
	word := Quote(level.String())
	if engine == fleet.SGLang {
		fields := make([]Field, 0, 2)
		if given := o.Get("priority"); given == nil || string(given) == "null" {
			fields = append(fields, Field{"priority", Number(priority(level))})
		}
		return o.With(append(fields, Field{"infera_retention", word})...)
	}
	fields := make([]Field, 0, 2)
	params, ok := &Object{raw: []byte("{}"), end: 1}, true
	if given := o.Get("kv_transfer_params"); given != nil && string(given) != "null" {
		params, ok = o.Object("kv_transfer_params")
	}
	if ok { // else it is the engine's to refuse
		fields = append(fields, Field{"kv_transfer_params", params.With(Field{"infera_retention", word})})
	}
	return o.With(append(fields, Field{internalField + "retention", word})...)
}

// priority is SGLang's scheduling priority of a retention.
func priority(level prompt.Retention) int {
	switch level {
	case prompt.RetentionLong:
		return 100
	case prompt.RetentionShort:
		return 50
	}
	return 0
}
