package extproc

import (
	"bytes"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Field numbers of google.protobuf.Struct and Value, and of
// envoy.config.core.v3.Metadata.
const (
	fieldEntries     protowire.Number = 1 // Struct.fields and Metadata.filter_metadata
	fieldStringValue protowire.Number = 3 // Value.string_value
)

// lookup returns the value of key in the map field 1 of b: a Struct's field, or
// a Metadata's namespace. The last entry of a key counts.
func lookup(b []byte, key string) (value []byte, found bool, err error) {
	for at := 0; at < len(b); {
		f, err := nextField(b, at)
		if err != nil {
			return nil, false, err
		}
		at = f.end
		if f.num != fieldEntries || f.typ != protowire.BytesType {
			continue
		}
		k, v, err := mapEntry(f.bytes)
		if err != nil {
			return nil, false, err
		}
		if string(k) == key {
			value, found = v, true
		}
	}
	return value, found, nil
}

// structString returns the string under key in the Struct b, nil when there is
// none or b is unreadable: what it says is only used to attribute a response.
func structString(b []byte, key string) []byte {
	raw, found, err := lookup(b, key)
	if err != nil || !found {
		return nil
	}
	f, err := nextField(raw, 0)
	if err == nil && f.end == len(raw) && f.num == fieldStringValue && f.typ == protowire.BytesType {
		return f.bytes
	}
	var v structpb.Value
	if proto.Unmarshal(raw, &v) != nil || v.GetStringValue() == "" {
		return nil
	}
	return []byte(v.GetStringValue())
}

// servedBy returns the endpoint that the data plane says served the request, ""
// when it does not say: the protocol's -served metadata, or Envoy's attribute
// upstream.address where it is forwarded.
func servedBy(m *message) []byte {
	if m.metadata != nil {
		if lb, found, err := lookup(m.metadata, namespaceLB); err == nil && found {
			if served := structString(lb, HeaderServed); len(served) > 0 {
				return served
			}
		}
	}
	if m.attributes != nil {
		return structString(m.attributes, attributeUpstream)
	}
	return nil
}

// detailsOf returns Envoy's word for who made the response and why; nil unless the
// attribute is configured.
func detailsOf(m *message) []byte {
	if m.attributes == nil {
		return nil
	}
	return structString(m.attributes, attributeDetails)
}

// subset is the set of endpoints that the data plane confines a pick to. Envoy
// repeats the metadata on every message of a stream; the last set that is not
// empty counts.
type subset struct {
	given     bool     // the hint is there, maybe empty
	endpoints []string // host:port, or host for any port
	last      []byte   // the value last read, to know it again
	fixed     bool     // a conformance test has chosen; metadata counts no more
}

// fix makes list, endpoints with commas, all that a pick may choose from.
func (s *subset) fix(list string) {
	s.given, s.fixed = true, true
	s.endpoints = appendEndpoints(nil, structpb.NewStringValue(list))
}

func (s *subset) reset() {
	s.given, s.fixed, s.endpoints, s.last = false, false, nil, s.last[:0]
}

// observe takes note of a message's metadata.
func (s *subset) observe(metadata []byte) error {
	if len(metadata) == 0 || s.fixed {
		return nil
	}
	hint, found, err := lookup(metadata, namespaceSubset)
	if err != nil || !found {
		return err
	}
	raw, found, err := lookup(hint, HeaderSubset)
	if err != nil || !found || s.given && bytes.Equal(raw, s.last) {
		return err
	}
	s.last = append(s.last[:0], raw...)
	var v structpb.Value
	if err := proto.Unmarshal(raw, &v); err != nil {
		return err
	}
	if _, null := v.GetKind().(*structpb.Value_NullValue); null {
		return nil
	}
	s.given = true
	if endpoints := appendEndpoints(nil, &v); len(endpoints) > 0 {
		s.endpoints = endpoints
	}
	return nil
}

// appendEndpoints reads every encoding of the hint seen in the field: a list, a
// comma-separated string (Envoy's header_to_metadata), a list of such strings.
func appendEndpoints(dst []string, v *structpb.Value) []string {
	if list := v.GetListValue(); list != nil {
		for _, item := range list.GetValues() {
			if item.GetListValue() == nil { // no encoding nests lists
				dst = appendEndpoints(dst, item)
			}
		}
		return dst
	}
	for part := range strings.SplitSeq(v.GetStringValue(), ",") {
		if part = strings.TrimSpace(part); part != "" {
			dst = append(dst, part)
		}
	}
	return dst
}
