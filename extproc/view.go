package extproc

import (
	"errors"
	"fmt"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// kind is what a message of the gateway carries: its field number in
// envoy.service.ext_proc.v3.ProcessingRequest.
type kind uint8

const (
	kindNone             kind = 0
	kindRequestHeaders   kind = 2
	kindResponseHeaders  kind = 3
	kindRequestBody      kind = 4
	kindResponseBody     kind = 5
	kindRequestTrailers  kind = 6
	kindResponseTrailers kind = 7
)

// Other fields of ProcessingRequest.
const (
	fieldMetadata       protowire.Number = 8
	fieldAttributes     protowire.Number = 9
	fieldProtocolConfig protowire.Number = 11
)

// bodyMode is envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.BodySendMode.
type bodyMode int32

const (
	modeNone            bodyMode = 0
	modeStreamed        bodyMode = 1
	modeBuffered        bodyMode = 2
	modeBufferedPartial bodyMode = 3
	modeFullDuplex      bodyMode = 4
)

// message is a view of one ProcessingRequest over the bytes it came in. Nothing
// is copied: all slices point into buf, which the message owns until free.
type message struct {
	buf mem.Buffer
	err error // why the bytes could not be read; the rest is unset then

	kind       kind
	body       []byte // of a body message
	bodyAt     int    // where body starts in buf
	eos        bool
	headers    []byte // HeaderMap of a headers or trailers message
	metadata   []byte // core.v3.Metadata
	attributes []byte // the ext-proc filter's attributes, a Struct

	configured   bool // protocol_config is present
	requestMode  bodyMode
	responseMode bodyMode
}

// errMerge says that a field must be merged with an earlier one of the same
// number, which a view cannot do.
var errMerge = errors.New("repeated message field")

// read makes m a view of buf, which it takes over.
func (m *message) read(buf mem.Buffer) {
	*m = message{buf: buf}
	err := m.parse(buf.ReadOnlyData())
	if errors.Is(err, errMerge) {
		err = m.readMerged(buf)
	}
	if err != nil {
		*m = message{buf: m.buf, err: fmt.Errorf("ext-proc message: %w", err)}
	}
}

// readMerged lets the protobuf library merge what was sent in pieces. No known
// data plane does that.
func (m *message) readMerged(buf mem.Buffer) error {
	var full extprocv3.ProcessingRequest
	err := proto.Unmarshal(buf.ReadOnlyData(), &full)
	buf.Free()
	*m = message{buf: mem.SliceBuffer(nil)}
	if err != nil {
		return err
	}
	merged, err := proto.Marshal(&full)
	if err != nil {
		return err
	}
	m.buf = mem.SliceBuffer(merged)
	return m.parse(merged)
}

// free gives the bytes back. The views are invalid from then on.
func (m *message) free() {
	if m.buf != nil {
		m.buf.Free()
	}
	*m = message{}
}

// field is one field of a protobuf message.
type field struct {
	num   protowire.Number
	typ   protowire.Type
	bytes []byte // of a length-delimited field
	value uint64 // of a varint
	end   int    // offset behind the field
}

// nextField reads the field at b[at:]. Fields of other wire types are skipped
// over, unknown ones included.
func nextField(b []byte, at int) (field, error) {
	num, typ, n := protowire.ConsumeTag(b[at:])
	if n < 0 {
		return field{}, protowire.ParseError(n)
	}
	f := field{num: num, typ: typ}
	at += n
	switch typ {
	case protowire.BytesType:
		f.bytes, n = protowire.ConsumeBytes(b[at:])
	case protowire.VarintType:
		f.value, n = protowire.ConsumeVarint(b[at:])
	default:
		n = protowire.ConsumeFieldValue(num, typ, b[at:])
	}
	if n < 0 {
		return field{}, protowire.ParseError(n)
	}
	f.end = at + n
	return f, nil
}

func (m *message) parse(b []byte) error {
	for at := 0; at < len(b); {
		f, err := nextField(b, at)
		if err != nil {
			return err
		}
		at = f.end
		if f.typ != protowire.BytesType {
			continue
		}
		switch {
		case f.num >= protowire.Number(kindRequestHeaders) && f.num <= protowire.Number(kindResponseTrailers):
			err = m.parsePhase(kind(f.num), f.bytes, f.end-len(f.bytes))
		case f.num == fieldMetadata:
			if m.metadata != nil {
				return errMerge
			}
			m.metadata = f.bytes
		case f.num == fieldAttributes:
			err = m.parseAttributes(f.bytes)
		case f.num == fieldProtocolConfig:
			err = m.parseConfig(f.bytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// parsePhase reads the message of the oneof that starts at offset base of buf.
func (m *message) parsePhase(k kind, b []byte, base int) error {
	if k != m.kind { // the last member of a oneof wins
		m.kind, m.body, m.bodyAt, m.eos, m.headers = k, nil, 0, false, nil
	}
	eosField := protowire.Number(3)
	isBody := k == kindRequestBody || k == kindResponseBody
	if isBody {
		eosField = 2
	}
	trailers := k == kindRequestTrailers || k == kindResponseTrailers
	for at := 0; at < len(b); {
		f, err := nextField(b, at)
		if err != nil {
			return err
		}
		at = f.end
		switch {
		case f.num == 1 && f.typ == protowire.BytesType && isBody:
			m.body, m.bodyAt = f.bytes, base+f.end-len(f.bytes)
		case f.num == 1 && f.typ == protowire.BytesType:
			if m.headers != nil {
				return errMerge
			}
			m.headers = f.bytes
		case f.num == eosField && f.typ == protowire.VarintType && !trailers:
			m.eos = protowire.DecodeBool(f.value)
		}
	}
	return nil
}

func (m *message) parseAttributes(b []byte) error {
	key, value, err := mapEntry(b)
	if err == nil && string(key) == namespaceExtProc {
		m.attributes = value
	}
	return err
}

func (m *message) parseConfig(b []byte) error {
	m.configured = true
	for at := 0; at < len(b); {
		f, err := nextField(b, at)
		if err != nil {
			return err
		}
		at = f.end
		switch {
		case f.typ != protowire.VarintType:
		case f.num == 1:
			m.requestMode = bodyMode(f.value) //nolint:gosec // an enum is the varint's low 32 bits
		case f.num == 2:
			m.responseMode = bodyMode(f.value) //nolint:gosec // as above
		}
	}
	return nil
}

// mapEntry reads the key and the message value of a map field's entry. An
// absent value is an empty message.
func mapEntry(b []byte) (key, value []byte, err error) {
	value = []byte{}
	seen := false
	for at := 0; at < len(b); {
		f, err := nextField(b, at)
		if err != nil {
			return nil, nil, err
		}
		at = f.end
		switch {
		case f.typ != protowire.BytesType:
		case f.num == 1:
			key = f.bytes
		case f.num == 2:
			if seen {
				return nil, nil, errMerge
			}
			value, seen = f.bytes, true
		}
	}
	return key, value, nil
}

// headerIter walks a HeaderMap.
type headerIter struct {
	rest  []byte
	key   []byte
	value []byte // raw_value, or value where that is empty
	err   error
}

// next moves to the next header and reports whether there is one.
func (it *headerIter) next() bool {
	for at := 0; at < len(it.rest); {
		f, err := nextField(it.rest, at)
		if err != nil {
			it.err = err
			return false
		}
		at = f.end
		if f.num != 1 || f.typ != protowire.BytesType {
			continue
		}
		it.rest = it.rest[at:]
		it.err = it.readHeader(f.bytes)
		return it.err == nil
	}
	return false
}

func (it *headerIter) readHeader(b []byte) error {
	var text, raw []byte
	it.key = nil
	for at := 0; at < len(b); {
		f, err := nextField(b, at)
		if err != nil {
			return err
		}
		at = f.end
		switch {
		case f.typ != protowire.BytesType:
		case f.num == 1:
			it.key = f.bytes
		case f.num == 2:
			text = f.bytes
		case f.num == 3:
			raw = f.bytes
		}
	}
	it.value = raw
	if len(raw) == 0 {
		it.value = text
	}
	return nil
}
