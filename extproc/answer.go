package extproc

import (
	"slices"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"pointsman/reports"
)

// answer is one ProcessingResponse ready for the wire. Whoever sends it owns
// its buffers.
type answer struct{ data mem.BufferSlice }

// Field numbers of ProcessingResponse.
const (
	answerRequestHeaders   protowire.Number = 1
	answerResponseHeaders  protowire.Number = 2
	answerRequestBody      protowire.Number = 3
	answerResponseBody     protowire.Number = 4
	answerRequestTrailers  protowire.Number = 5
	answerResponseTrailers protowire.Number = 6
	answerDynamicMetadata  protowire.Number = 8
)

// answerTo maps a message's kind to the field of its answer.
func answerTo(k kind) protowire.Number { return protowire.Number(k) - 1 }

// overwrite is HeaderValueOption's OVERWRITE_IF_EXISTS_OR_ADD.
const overwrite = 2

// smallBody is the size up to which a body is copied next to its frame instead
// of being sent as a slice: one buffer is cheaper than four.
const smallBody = 4 << 10

// eosTail is StreamedBodyResponse.end_of_stream = true.
const eosTail = "\x10\x01"

// assembler builds answers. One is shared by all streams.
type assembler struct {
	pool    *bufferPool
	control []controlHeader
	tail    mem.Buffer
	plain   [answerResponseTrailers + 1]mem.BufferSlice // answers that change nothing
	hidden  [modeFullDuplex + 1][]byte                  // overrides of the modes, see hiddenModes
}

func newAssembler(pool *bufferPool) *assembler {
	a := &assembler{
		pool:    pool,
		control: controls[:],
		tail:    mem.SliceBuffer(eosTail),
		hidden:  hiddenModes(),
	}
	for num := answerRequestHeaders; num <= answerResponseTrailers; num++ {
		var inner []byte
		if num < answerRequestTrailers { // HeadersResponse and BodyResponse hold an empty CommonResponse
			inner = []byte{0x0a, 0x00}
		}
		b := protowire.AppendTag(nil, num, protowire.BytesType)
		a.plain[num] = mem.BufferSlice{mem.SliceBuffer(protowire.AppendBytes(b, inner))}
	}
	return a
}

// same returns the answer to a message of kind k that changes nothing. Its
// bytes are shared, and freeing them does nothing.
func (a *assembler) same(k kind) answer { return answer{a.plain[answerTo(k)]} }

// lenField is the size of a length-delimited field with a one-byte tag.
func lenField(n int) int { return 1 + protowire.SizeBytes(n) }

func appendLen(dst []byte, num protowire.Number, n int) []byte {
	dst = protowire.AppendTag(dst, num, protowire.BytesType)
	return protowire.AppendVarint(dst, uint64(n)) //nolint:gosec // a length is not negative
}

// pieceSizes are the nested lengths around a piece of a body, outermost first:
// BodyResponse, CommonResponse, BodyMutation, StreamedBodyResponse.
func pieceSizes(n int, eos bool) (response, common, mutation, streamed int) {
	if n > 0 {
		streamed = lenField(n)
	}
	if eos {
		streamed += len(eosTail)
	}
	mutation = lenField(streamed)
	common = lenField(mutation)
	response = lenField(common)
	return response, common, mutation, streamed
}

// maxPrefix is enough for what precedes a piece's bytes.
const maxPrefix = 5 * (1 + 5)

func appendPiecePrefix(dst []byte, num protowire.Number, n int, eos bool) []byte {
	response, common, mutation, streamed := pieceSizes(n, eos)
	dst = appendLen(dst, num, response)
	dst = appendLen(dst, 1, common)
	dst = appendLen(dst, 3, mutation)
	dst = appendLen(dst, 3, streamed)
	if n > 0 {
		dst = appendLen(dst, 1, n)
	}
	return dst
}

// piece returns the answer that passes on buf[from:to] as a part of the body to
// which num answers. It takes its own reference to buf.
func (a *assembler) piece(num protowire.Number, buf mem.Buffer, from, to int, eos bool) answer {
	n := to - from
	if n <= smallBody {
		return a.smallPiece(num, buf, from, to, eos)
	}
	prefix := appendPiecePrefix(make([]byte, 0, maxPrefix), num, n, eos)
	data := make(mem.BufferSlice, 2, 3)
	data[0], data[1] = mem.SliceBuffer(prefix), buf.Slice(from, to)
	if eos {
		data = append(data, a.tail)
	}
	return answer{data}
}

func (a *assembler) smallPiece(num protowire.Number, buf mem.Buffer, from, to int, eos bool) answer {
	b := a.pool.Get(maxPrefix + to - from + len(eosTail))
	out := appendPiecePrefix((*b)[:0], num, to-from, eos)
	if to > from {
		out = append(out, buf.ReadOnlyData()[from:to]...)
	}
	if eos {
		out = append(out, eosTail...)
	}
	return a.own(b, out)
}

// own makes out, written into the pooled buffer b, an answer.
func (a *assembler) own(b *[]byte, out []byte) answer {
	*b = out
	return answer{mem.BufferSlice{mem.NewBuffer(b, a.pool)}}
}

// pieces appends the answers that pass on buf[from:to] in pieces of at most
// size bytes. An empty range gives one empty piece if eos, else none.
func (a *assembler) pieces(dst []answer, num protowire.Number, buf mem.Buffer, from, to, size int, eos bool) []answer {
	if from == to && !eos {
		return dst
	}
	for to-from > size {
		dst = append(dst, a.piece(num, buf, from, from+size, false))
		from += size
	}
	return append(dst, a.piece(num, buf, from, to, eos))
}

// route is where a picked request goes.
type route struct {
	destination []byte // host:port; empty when nothing was picked
	worker      string
	prefill     string // "" for none
	rank        []byte // decimal; empty for none
	prefillRank []byte // the same of the prefill worker
	pick        []byte // what the forwarder is told of the pick; empty for nothing
	alone       bool   // the decode worker does without a prefill worker

	extra    []header // further headers to set
	body     []byte   // what replaces a buffered body; nil leaves it
	fallback []byte   // IDs of the workers behind the first destination; empty for none
	ticket   []byte   // vouches for the above; empty for none
	id       string   // request ID, where the request has none; "" else

	forged []string // further headers that a client sent and that must not pass

	reselect bool // the gateway is to select its route again: Config.ClearRouteCache
}

// sets reports whether a header is among the further ones of r: then the client's
// is overwritten.
func (r *route) sets(name string) bool {
	return slices.ContainsFunc(r.extra, func(h header) bool { return strings.EqualFold(h.name, name) })
}

// header is a header to set.
type header struct{ name, value string }

// skip is the value of HeaderPrefillSkip.
const skip = "true"

// setting is a header that an answer sets, and its value: one of the two.
type setting struct {
	name  string
	bytes []byte
	text  string
}

func (f *setting) size() int { return setHeaderSize(f.name, len(f.bytes)+len(f.text)) }

func (f *setting) append(dst []byte) []byte {
	if f.text != "" {
		return appendSetHeader(dst, f.name, f.text)
	}
	return appendSetHeader(dst, f.name, f.bytes)
}

// maxSettings is room for all routing headers and the further ones: of a
// conformance test, and of a rewritten body.
const maxSettings = 12

// settings are the headers that an answer sets, and which of the routing headers
// are among them. It is an array, so that it can stay on the stack.
type settings struct {
	list [maxSettings]setting
	n    int
	set  routed
}

// bytes and text add a header, but for one without a value.
func (f *settings) bytes(bit routed, name string, value []byte) {
	if len(value) > 0 {
		f.list[f.n] = setting{name: name, bytes: value}
		f.n, f.set = f.n+1, f.set|bit
	}
}

func (f *settings) text(bit routed, name, value string) {
	if value != "" {
		f.list[f.n] = setting{name: name, text: value}
		f.n, f.set = f.n+1, f.set|bit
	}
}

// headers adds what r sets.
func (r *route) headers(f *settings) {
	if len(r.destination) > 0 {
		f.bytes(routedWorker, HeaderDestination, r.destination)
		f.text(routedWorker, HeaderWorker, r.worker)
	}
	f.text(routedPrefill, HeaderPrefill, r.prefill)
	f.bytes(routedRank, HeaderRank, r.rank)
	f.bytes(routedPrefillRank, HeaderPrefillRank, r.prefillRank)
	if r.alone {
		f.text(routedSkip, HeaderPrefillSkip, skip)
	}
	for i := range r.extra {
		f.text(0, r.extra[i].name, r.extra[i].value)
	}
	f.bytes(routedFallback, HeaderFallback, r.fallback)
	f.bytes(routedTicket, HeaderTicket, r.ticket)
	f.text(routedID, HeaderRequestID, r.id)
	f.bytes(routedPick, reports.Header, r.pick)
}

// route returns the answer num (to headers or a body) that sets the routing
// headers of r, removes every other control header, and names the destination
// in dynamic metadata too. The header and the metadata are the same string, as
// the protocol demands.
func (a *assembler) route(num protowire.Number, r *route) answer {
	var set settings
	r.headers(&set)
	mutation := a.mutationSize(r, &set)
	common := lenField(mutation)
	if r.reselect {
		common += 2
	}
	if r.body != nil {
		common += lenField(lenField(len(r.body)))
	}
	metadata := metadataSize(r.destination)
	total := lenField(lenField(common))
	if set.set != 0 {
		total += lenField(metadata)
	}
	b := a.pool.Get(total)
	out := appendLen((*b)[:0], num, lenField(common))
	out = appendLen(out, 1, common)
	out = appendLen(out, 2, mutation)
	out = a.appendMutation(out, r, &set)
	if r.body != nil {
		out = appendLen(out, 3, lenField(len(r.body)))
		out = append(appendLen(out, 1, len(r.body)), r.body...)
	}
	if r.reselect {
		out = append(out, 5<<3, 1)
	}
	if set.set != 0 {
		out = appendMetadata(appendLen(out, answerDynamicMetadata, metadata), r.destination)
	}
	return a.own(b, out)
}

func (a *assembler) mutationSize(r *route, set *settings) int {
	n := 0
	for i := range set.n {
		n += lenField(set.list[i].size())
	}
	for _, name := range r.forged {
		if !r.sets(name) {
			n += lenField(len(name))
		}
	}
	for i := range a.control {
		if a.control[i].set&set.set == 0 {
			n += lenField(len(a.control[i].name))
		}
	}
	return n
}

func (a *assembler) appendMutation(dst []byte, r *route, set *settings) []byte {
	for i := range set.n {
		dst = set.list[i].append(dst)
	}
	for _, name := range r.forged {
		if !r.sets(name) {
			dst = append(appendLen(dst, 2, len(name)), name...)
		}
	}
	// A header is never both set and removed: data planes differ in which of
	// the two they do first.
	for i := range a.control {
		if a.control[i].set&set.set == 0 {
			dst = appendLen(dst, 2, len(a.control[i].name))
			dst = append(dst, a.control[i].name...)
		}
	}
	return dst
}

// set returns the answer to response headers that sets some.
func (a *assembler) set(headers ...header) answer {
	mutation := 0
	for i := range headers {
		mutation += lenField(setHeaderSize(headers[i].name, len(headers[i].value)))
	}
	common := lenField(mutation)
	b := a.pool.Get(lenField(lenField(common)))
	out := appendLen((*b)[:0], answerResponseHeaders, lenField(common))
	out = appendLen(out, 1, common)
	out = appendLen(out, 2, mutation)
	for i := range headers {
		out = appendSetHeader(out, headers[i].name, headers[i].value)
	}
	return a.own(b, out)
}

func headerSize(name string, value int) int { return lenField(len(name)) + lenField(value) }

// setHeaderSize is the size of a HeaderValueOption.
func setHeaderSize(name string, value int) int { return lenField(headerSize(name, value)) + 2 }

func appendSetHeader[V []byte | string](dst []byte, name string, value V) []byte {
	dst = appendLen(dst, 1, setHeaderSize(name, len(value)))
	dst = appendLen(dst, 1, headerSize(name, len(value)))
	dst = appendLen(dst, 1, len(name))
	dst = append(dst, name...)
	dst = appendLen(dst, 3, len(value)) // raw_value: Envoy ignores value
	dst = append(dst, value...)
	return append(dst, 3<<3, overwrite)
}

// The dynamic metadata is Struct{envoy.lb: Struct{x-gateway-destination-endpoint: "…"}}.
// destinationSizes are the lengths inside, innermost first.
func destinationSizes(destination []byte) (value, entry, inner, outerValue, outerEntry int) {
	value = lenField(len(destination)) // Value.string_value
	entry = lenField(len(HeaderDestination)) + lenField(value)
	inner = lenField(entry)      // Struct.fields
	outerValue = lenField(inner) // Value.struct_value
	outerEntry = lenField(len(namespaceLB)) + lenField(outerValue)
	return value, entry, inner, outerValue, outerEntry
}

func metadataSize(destination []byte) int {
	_, _, _, _, outerEntry := destinationSizes(destination)
	return lenField(outerEntry)
}

func appendMetadata(dst, destination []byte) []byte {
	value, entry, inner, outerValue, outerEntry := destinationSizes(destination)
	dst = appendLen(dst, 1, outerEntry)
	dst = appendLen(dst, 1, len(namespaceLB))
	dst = append(dst, namespaceLB...)
	dst = appendLen(dst, 2, outerValue)
	dst = appendLen(dst, 5, inner)
	dst = appendLen(dst, 1, entry)
	dst = appendLen(dst, 1, len(HeaderDestination))
	dst = append(dst, HeaderDestination...)
	dst = appendLen(dst, 2, value)
	dst = appendLen(dst, 3, len(destination))
	return append(dst, destination...)
}
