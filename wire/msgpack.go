//nolint:gosec // G115: integers of other widths are what this file is about
package wire

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/zeebo/xxh3"
)

// decodeError is a fault found in a message. Being constants they cost no
// allocation, which matters when a publisher sends nothing but faults.
type decodeError string

func (e decodeError) Error() string { return string(e) }

const (
	errShort     decodeError = "ends before its last value"
	errNotArray  decodeError = "array expected"
	errNotText   decodeError = "string expected"
	errNotInt    decodeError = "integer expected"
	errNotNumber decodeError = "number expected"
	errNotHash   decodeError = "block hash expected"
	errNotToken  decodeError = "token id expected"
	errReserved  decodeError = "reserved format byte"
)

// MessagePack format bytes (https://github.com/msgpack/msgpack/blob/master/spec.md).
const (
	mpNil      = 0xc0
	mpReserved = 0xc1
	mpFalse    = 0xc2
	mpTrue     = 0xc3
	mpBin8     = 0xc4
	mpBin16    = 0xc5
	mpBin32    = 0xc6
	mpExt8     = 0xc7
	mpExt16    = 0xc8
	mpExt32    = 0xc9
	mpFloat32  = 0xca
	mpFloat64  = 0xcb
	mpUint8    = 0xcc
	mpUint16   = 0xcd
	mpUint32   = 0xce
	mpUint64   = 0xcf
	mpInt8     = 0xd0
	mpInt16    = 0xd1
	mpInt32    = 0xd2
	mpInt64    = 0xd3
	mpFixExt1  = 0xd4
	mpFixExt16 = 0xd8
	mpStr8     = 0xd9
	mpStr16    = 0xda
	mpStr32    = 0xdb
	mpArray16  = 0xdc
	mpArray32  = 0xdd
	mpMap16    = 0xde
	mpMap32    = 0xdf
)

// reader walks a MessagePack message. Its methods move past what they return;
// after an error the position is unspecified. The decoder is hand-written
// because token ids are most of the bytes of an event and one call per token is
// what a general decoder costs.
type reader struct {
	b  []byte
	at int
}

func (r *reader) left() int { return len(r.b) - r.at }

func (r *reader) peek() (byte, error) {
	if r.at >= len(r.b) {
		return 0, errShort
	}
	return r.b[r.at], nil
}

// bigEndian returns the unsigned integer of n bytes (1, 2, 4 or 8) that
// follows a format byte, and moves past both.
func (r *reader) bigEndian(n int) (uint64, error) {
	if r.left() < 1+n {
		return 0, errShort
	}
	p := r.b[r.at+1:]
	r.at += 1 + n
	switch n {
	case 1:
		return uint64(p[0]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(p)), nil
	case 4:
		return uint64(binary.BigEndian.Uint32(p)), nil
	}
	return binary.BigEndian.Uint64(p), nil
}

// nilNext moves past a nil and reports whether there was one.
func (r *reader) nilNext() bool {
	if r.at < len(r.b) && r.b[r.at] == mpNil {
		r.at++
		return true
	}
	return false
}

// arrayLen reads an array's header. Every element takes a byte at least, so a
// length beyond the rest of the message is a fault: nothing is ever allocated
// on a header's word.
func (r *reader) arrayLen() (int, error) {
	c, err := r.peek()
	if err != nil {
		return 0, err
	}
	var n uint64
	switch {
	case c&0xf0 == 0x90:
		r.at++
		n = uint64(c & 0x0f)
	case c == mpArray16:
		n, err = r.bigEndian(2)
	case c == mpArray32:
		n, err = r.bigEndian(4)
	default:
		return 0, errNotArray
	}
	if err == nil && n > uint64(r.left()) {
		err = errShort
	}
	return int(n), err
}

// mapLen reads a map's header.
func (r *reader) mapLen() (int, error) {
	c, err := r.peek()
	if err != nil {
		return 0, err
	}
	var n uint64
	switch {
	case isFixMap(c):
		r.at++
		n = uint64(c & 0x0f)
	case c == mpMap16:
		n, err = r.bigEndian(2)
	case c == mpMap32:
		n, err = r.bigEndian(4)
	}
	if err == nil && 2*n > uint64(r.left()) {
		err = errShort
	}
	return int(n), err
}

func isFixMap(c byte) bool { return c&0xf0 == 0x80 }

func isMap(c byte) bool { return isFixMap(c) || c == mpMap16 || c == mpMap32 }

func isArray(c byte) bool { return c&0xf0 == 0x90 || c == mpArray16 || c == mpArray32 }

func isText(c byte) bool {
	return c&0xe0 == 0xa0 || c >= mpStr8 && c <= mpStr32 || c >= mpBin8 && c <= mpBin32
}

// text returns the bytes of a string or of a byte string; they alias the
// message.
func (r *reader) text() ([]byte, error) {
	c, err := r.peek()
	if err != nil {
		return nil, err
	}
	var n uint64
	switch {
	case c&0xe0 == 0xa0:
		r.at++
		n = uint64(c & 0x1f)
	case c == mpStr8, c == mpBin8:
		n, err = r.bigEndian(1)
	case c == mpStr16, c == mpBin16:
		n, err = r.bigEndian(2)
	case c == mpStr32, c == mpBin32:
		n, err = r.bigEndian(4)
	default:
		return nil, errNotText
	}
	if err != nil {
		return nil, err
	}
	if n > uint64(r.left()) {
		return nil, errShort
	}
	p := r.b[r.at : r.at+int(n)]
	r.at += int(n)
	return p, nil
}

// integer returns an integer's 64 bits, two's complement when negative.
func (r *reader) integer() (bits uint64, negative bool, err error) {
	c, err := r.peek()
	if err != nil {
		return 0, false, err
	}
	var v int64
	switch {
	case c < 0x80:
		r.at++
		return uint64(c), false, nil
	case c >= 0xe0:
		r.at++
		v = int64(int8(c))
	case c >= mpUint8 && c <= mpUint64:
		bits, err = r.bigEndian(1 << (c - mpUint8))
		return bits, false, err
	case c >= mpInt8 && c <= mpInt64:
		if bits, err = r.bigEndian(1 << (c - mpInt8)); err != nil {
			return 0, false, err
		}
		shift := 64 - 8<<(c-mpInt8)
		v = int64(bits<<shift) >> shift
	default:
		return 0, false, errNotInt
	}
	return uint64(v), v < 0, nil
}

// number returns an integer or a float.
func (r *reader) number() (float64, error) {
	c, err := r.peek()
	if err != nil {
		return 0, err
	}
	var bits uint64
	var negative bool
	switch c {
	case mpFloat64:
		bits, err = r.bigEndian(8)
		return math.Float64frombits(bits), err
	case mpFloat32:
		bits, err = r.bigEndian(4)
		return float64(math.Float32frombits(uint32(bits))), err
	}
	bits, negative, err = r.integer()
	switch {
	case err == errNotInt: //nolint:errorlint // constants are never wrapped here
		return 0, errNotNumber
	case negative:
		return float64(int64(bits)), err
	}
	return float64(bits), err
}

// hash returns an engine's block hash as an opaque handle: an integer's 64 bits
// (SGLang's may be negative), or the XXH3 of a byte string, which vLLM sends
// unless VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES is set.
func (r *reader) hash() (uint64, error) {
	c, err := r.peek()
	if err != nil {
		return 0, err
	}
	if isText(c) {
		var p []byte
		if p, err = r.text(); err != nil {
			return 0, err
		}
		return xxh3.Hash(p), nil
	}
	bits, _, err := r.integer()
	if err == errNotInt { //nolint:errorlint // constants are never wrapped here
		err = errNotHash
	}
	return bits, err
}

// hashes appends an array of block hashes to dst[:0].
func (r *reader) hashes(dst []uint64) ([]uint64, error) {
	n, err := r.arrayLen()
	if err != nil {
		return dst, err
	}
	dst = slices.Grow(dst[:0], n)[:n]
	for i := range dst {
		// Nearly every hash has its top byte set, hence this one format.
		if p := r.b[r.at:]; len(p) >= 9 && p[0] == mpUint64 {
			dst[i] = binary.BigEndian.Uint64(p[1:])
			r.at += 9
			continue
		}
		if dst[i], err = r.hash(); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// tokens appends an array of token ids to dst[:0]. With speculative decoding
// (SGLang's EAGLE and MTP) each element is a pair [t(i), t(i+1)], of which the
// first counts; the first element decides for the whole event
// (Infera infera/router/kv_event/events.py).
func (r *reader) tokens(dst []uint32) ([]uint32, error) {
	n, err := r.arrayLen()
	if err != nil {
		return dst, err
	}
	dst = slices.Grow(dst[:0], n)[:n]
	if n > 0 && isArray(r.b[r.at]) {
		return dst, r.pairs(dst)
	}
	b, at := r.b, r.at
	for i := range dst {
		p := b[at:]
		if len(p) < 5 {
			r.at = at
			return dst, r.slowTokens(dst[i:])
		}
		switch c := p[0]; {
		case c < 0x80:
			dst[i] = uint32(c)
			at++
		case c == mpUint16:
			dst[i] = uint32(p[1])<<8 | uint32(p[2])
			at += 3
		case c == mpUint32:
			dst[i] = binary.BigEndian.Uint32(p[1:])
			at += 5
		case c == mpUint8:
			dst[i] = uint32(p[1])
			at += 2
		default:
			r.at = at
			return dst, r.slowTokens(dst[i:])
		}
	}
	r.at = at
	return dst, nil
}

// slowTokens fills dst with token ids of any integer format, up to the last
// byte of the message.
func (r *reader) slowTokens(dst []uint32) error {
	for i := range dst {
		bits, negative, err := r.integer()
		switch {
		case err == errNotInt: //nolint:errorlint // constants are never wrapped here
			return errNotToken
		case err != nil:
			return err
		case negative, bits > math.MaxUint32:
			return errNotToken
		}
		dst[i] = uint32(bits)
	}
	return nil
}

func (r *reader) pairs(dst []uint32) error {
	for i := range dst {
		n, err := r.arrayLen()
		if err != nil {
			return err
		}
		if n == 0 {
			return errNotToken
		}
		if err := r.slowTokens(dst[i : i+1]); err != nil {
			return err
		}
		if err := r.skip(n - 1); err != nil {
			return err
		}
	}
	return nil
}

// skip moves past n values of any kind. It counts what is still to come
// instead of descending, so nesting costs nothing and needs no limit.
func (r *reader) skip(n int) error {
	for todo := int64(n); todo > 0; todo-- {
		children, err := r.skipOne()
		if err != nil {
			return err
		}
		todo += children
	}
	return nil
}

// skipOne moves past one value, of a container past its header, and returns
// how many values that holds.
func (r *reader) skipOne() (children int64, err error) {
	c, err := r.peek()
	if err != nil {
		return 0, err
	}
	var n int
	switch {
	case isText(c):
		_, err = r.text()
		return 0, err
	case isArray(c):
		n, err = r.arrayLen()
		return int64(n), err
	case isMap(c):
		n, err = r.mapLen()
		return 2 * int64(n), err
	case c == mpReserved:
		return 0, errReserved
	}
	size, err := r.scalarSize(c)
	if err != nil {
		return 0, err
	}
	if size > r.left() {
		return 0, errShort
	}
	r.at += size
	return 0, nil
}

// scalarSize returns the size of a value that is no text and no container, its
// format byte c included.
func (r *reader) scalarSize(c byte) (int, error) {
	switch {
	case c >= mpFixExt1 && c <= mpFixExt16:
		return 2 + 1<<(c-mpFixExt1), nil
	case c >= mpExt8 && c <= mpExt32:
		width := 1 << (c - mpExt8)
		head := reader{b: r.b, at: r.at}
		n, err := head.bigEndian(width)
		return 2 + width + int(n), err
	case c == mpFloat32:
		return 5, nil
	case c == mpFloat64:
		return 9, nil
	case c >= mpUint8 && c <= mpUint64:
		return 1 + 1<<(c-mpUint8), nil
	case c >= mpInt8 && c <= mpInt64:
		return 1 + 1<<(c-mpInt8), nil
	}
	return 1, nil // nil, booleans and the integers that are their own format byte
}
