package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// value returns a field's JSON, nil when it is absent or null.
func (r *record) value(field string) json.RawMessage {
	raw := r.fields[field]
	if bytes.Equal(raw, []byte("null")) {
		return nil
	}
	return raw
}

// text returns a string field, "" when it is absent or null.
func (r *record) text(field string, limit int) string {
	raw := r.value(field)
	if raw == nil {
		return ""
	}
	var s string
	if raw[0] != '"' {
		r.fail(field, fmt.Errorf("%s: want a string", abridge(raw)))
		return ""
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		r.fail(field, err)
		return ""
	}
	if len(s) > limit {
		r.fail(field, fmt.Errorf("longer than %d bytes", limit))
		return ""
	}
	return s
}

// number returns an integer field within bounds, absent when it is absent or
// null. 16.0 is an integer: JSON has one kind of number.
func (r *record) number(field string, low, high, absent int) int {
	raw := r.value(field)
	if raw == nil {
		return absent
	}
	var f float64
	err := json.Unmarshal(raw, &f)
	if err != nil || f != math.Trunc(f) || f < float64(low) || f > float64(high) {
		r.fail(field, fmt.Errorf("%s: want an integer in %d..%d", abridge(raw), low, high))
		return absent
	}
	return int(f)
}

// object returns an object field as a record of its own, without fields when it
// is absent or null.
func (r *record) object(field string) *record {
	inner := &record{}
	raw := r.value(field)
	if raw == nil {
		return inner
	}
	if err := json.Unmarshal(raw, &inner.fields); err != nil {
		r.fail(field, fmt.Errorf("%s: want an object", abridge(raw)))
	}
	return inner
}

// inherit takes over the fault of an object field, whose name it gets.
func (r *record) inherit(field string, inner *record) {
	if re, ok := errors.AsType[*RecordError](inner.err); ok {
		r.fail(field, fmt.Errorf("%s: %w", re.Field, re.Err))
	}
}

// abridge shortens a value for an error's text.
func abridge(raw json.RawMessage) string {
	const limit = 40
	if len(raw) <= limit {
		return string(raw)
	}
	return string(bytes.ToValidUTF8(raw[:limit], nil)) + "…"
}
