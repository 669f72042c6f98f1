package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf16"

	"pointsman/fleet"
)

// EncodeRegistration returns the record that an Infera launcher would write for
// w, byte for byte: the same fields in the same order, spaced and escaped as
// Python's json.dumps does (infera/common/registration.py).
//
// Fields of ours, and a status other than active, which no launcher writes, are
// appended only when they are set. Of the nested plane only the tokenizer
// canary is known here: without one the field is absent, as ATOM's launcher
// leaves it, and with one its other required fields are the block size and
// empty strings. Incarnation is not part of a record.
func EncodeRegistration(w *fleet.Worker) ([]byte, error) {
	if w.ID == "" || w.URL == "" {
		return nil, fmt.Errorf("%w: a worker needs an ID and a URL", ErrRecord)
	}
	e := &recordWriter{}
	e.text("worker_id", w.ID)
	e.text("url", w.URL)
	e.text("model_name", w.Model)
	e.text("engine", string(w.Engine))
	e.text("disagg_mode", w.Role.String())
	if err := e.disaggMeta(w); err != nil {
		return nil, err
	}
	e.optional("kv_events_endpoint", w.KVEvents)
	e.number("kv_block_size", w.BlockSize, 0)
	e.number("dp_rank", w.DPRank, -1)
	e.number("dp_size", w.DPSize, 0)
	e.text("request_transport", w.Transport)
	e.kv(w)
	if w.Status != fleet.Active {
		e.text("status", w.Status.String())
	}
	if w.Endpoint != "" {
		e.text("forwarder_endpoint", w.Endpoint)
	}
	if w.PingSubject != "" {
		e.text("ping_subject", w.PingSubject)
	}
	if w.KVReplay != "" {
		e.text("kv_replay_endpoint", w.KVReplay)
	}
	e.names("model_aliases", w.Aliases)
	e.names("lora_adapters", w.Adapters)
	return append(e.b, '}'), nil
}

type recordWriter struct{ b []byte }

func (e *recordWriter) key(name string) {
	sep := ", "
	if len(e.b) == 0 {
		sep = "{"
	}
	e.b = append(append(append(append(e.b, sep...), '"'), name...), `": `...)
}

func (e *recordWriter) text(name, value string) {
	e.key(name)
	e.b = appendPythonString(e.b, value)
}

func (e *recordWriter) optional(name, value string) {
	if value == "" {
		e.key(name)
		e.b = append(e.b, "null"...)
		return
	}
	e.text(name, value)
}

// names writes a list of ours, unless it is empty.
func (e *recordWriter) names(name string, list []string) {
	if len(list) == 0 {
		return
	}
	e.key(name)
	sep := "["
	for _, s := range list {
		e.b = appendPythonString(append(e.b, sep...), s)
		sep = ", "
	}
	e.b = append(e.b, ']')
}

// number writes null for the value that means absent.
func (e *recordWriter) number(name string, value, absent int) {
	e.key(name)
	if value == absent {
		e.b = append(e.b, "null"...)
		return
	}
	e.b = strconv.AppendInt(e.b, int64(value), 10)
}

func (e *recordWriter) disaggMeta(w *fleet.Worker) error {
	e.key("disagg_meta")
	if w.Protocol == "" && w.Params == nil {
		e.b = append(e.b, "{}"...)
		return nil
	}
	params := bytes.TrimSpace(w.Params)
	switch {
	case params == nil:
		params = []byte("{}")
	case params[0] != '{' || !json.Valid(params):
		return fmt.Errorf("%w: the parameters of worker %q are no JSON object", ErrRecord, w.ID)
	}
	e.b = appendPythonString(append(e.b, `{"protocol": `...), w.Protocol)
	e.b = append(append(append(e.b, `, "params": `...), params...), '}')
	return nil
}

func (e *recordWriter) kv(w *fleet.Worker) {
	if w.Canary == nil {
		return // ATOM's launcher, which has no such plane, leaves the field out
	}
	e.key("kv")
	size := strconv.Itoa(w.BlockSize)
	e.b = append(e.b, `{"engine_block_size": `+size+`, "index_block_size": `+size+
		`, "tokenizer": "", "tokenizer_digest": "", "tokenizer_canary": [`...)
	for i, t := range w.Canary {
		if i > 0 {
			e.b = append(e.b, ", "...)
		}
		e.b = strconv.AppendUint(e.b, uint64(t), 10)
	}
	e.b = append(e.b, "]}"...)
}

// appendPythonString quotes s in ASCII, as json.dumps does by default.
func appendPythonString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', byte(c))
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\r':
			dst = append(dst, `\r`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case c == '\b':
			dst = append(dst, `\b`...)
		case c == '\f':
			dst = append(dst, `\f`...)
		case c >= ' ' && c < 0x7f:
			dst = append(dst, byte(c))
		case c > 0xffff:
			hi, lo := utf16.EncodeRune(c)
			dst = fmt.Appendf(dst, `\u%04x\u%04x`, hi, lo)
		default:
			dst = fmt.Appendf(dst, `\u%04x`, c)
		}
	}
	return append(dst, '"')
}
