//nolint:gosec // G115: integers of other widths are what this file is about
package wire

import (
	"encoding/binary"
	"math"

	"pointsman/kvindex"
)

// Keys is what a stored event says beside its tokens, before it is folded into
// kvindex.Event.Extra, which cannot be undone. The zero value is the base model
// without a salt.
type Keys struct {
	LoRA string // the adapter's name
	Salt string // the request's cache_salt; only on events without a parent
}

// AppendVLLM appends b as vLLM's publisher sends it: events as maps.
// It is what a simulated worker publishes; Extra is not encoded, see
// [AppendVLLMKeys].
func AppendVLLM(dst []byte, b *kvindex.Batch) []byte { return AppendVLLMKeys(dst, b, nil) }

// AppendVLLMKeys is [AppendVLLM] with the keys of each event; keys may be
// shorter than b.Events.
func AppendVLLMKeys(dst []byte, b *kvindex.Batch, keys []Keys) []byte {
	dst = appendHead(dst, b)
	for i := range b.Events {
		var k Keys
		if i < len(keys) {
			k = keys[i]
		}
		dst = appendMapEvent(dst, &b.Events[i], k)
	}
	return appendRank(dst, b.Rank)
}

// AppendSGLang appends b as SGLang's publisher sends it: events as arrays,
// hashes as signed integers. Extra is not encoded.
func AppendSGLang(dst []byte, b *kvindex.Batch) []byte {
	dst = appendHead(dst, b)
	for i := range b.Events {
		dst = appendArrayEvent(dst, &b.Events[i])
	}
	return appendRank(dst, b.Rank)
}

func appendHead(dst []byte, b *kvindex.Batch) []byte {
	dst = append(dst, 0x93, mpFloat64)
	dst = binary.BigEndian.AppendUint64(dst, math.Float64bits(b.At))
	return appendArrayLen(dst, len(b.Events))
}

func appendRank(dst []byte, rank int) []byte {
	if rank < 0 {
		return append(dst, mpNil)
	}
	return appendUint(dst, uint64(rank))
}

func appendMapEvent(dst []byte, e *kvindex.Event, k Keys) []byte {
	medium := mediumName(e.Tier)
	n := byte(1)
	switch e.Kind {
	case kvindex.Stored:
		n = 6
		if k.LoRA != "" {
			n++
		}
		if k.LoRA != "" || k.Salt != "" {
			n++
		}
	case kvindex.Removed:
		n = 2
	}
	if medium != "" && e.Kind != kvindex.Cleared {
		n++
	}
	dst = append(dst, 0x80|n)
	dst = appendText(appendText(dst, "type"), kindName(e.Kind))
	if e.Kind == kvindex.Cleared {
		return dst
	}
	dst = appendHashes(appendText(dst, "block_hashes"), e.Hashes, appendUint)
	if e.Kind == kvindex.Stored {
		dst = appendParent(appendText(dst, "parent_block_hash"), e, appendUint)
		dst = appendTokens(appendText(dst, "token_ids"), e.Tokens)
		dst = appendUint(appendText(dst, "block_size"), uint64(e.BlockSize))
		dst = append(appendText(dst, "lora_id"), mpNil)
	}
	if medium != "" {
		dst = appendText(appendText(dst, "medium"), medium)
	}
	if e.Kind == kvindex.Stored {
		dst = appendKeys(dst, e, k)
	}
	return dst
}

// appendKeys appends lora_name and extra_keys, the latter as vLLM builds it:
// the adapter on every block, the salt on a prompt's first one.
func appendKeys(dst []byte, e *kvindex.Event, k Keys) []byte {
	if k.LoRA == "" && k.Salt == "" {
		return dst
	}
	if k.LoRA != "" {
		dst = appendText(appendText(dst, "lora_name"), k.LoRA)
	}
	dst = appendArrayLen(appendText(dst, "extra_keys"), len(e.Hashes))
	for i := range e.Hashes {
		salt := ""
		if i == 0 && !e.HasParent {
			salt = k.Salt
		}
		switch {
		case k.LoRA != "" && salt != "":
			dst = appendText(appendText(append(dst, 0x92), k.LoRA), salt)
		case k.LoRA != "":
			dst = appendText(append(dst, 0x91), k.LoRA)
		case salt != "":
			dst = appendText(append(dst, 0x91), salt)
		default:
			dst = append(dst, mpNil)
		}
	}
	return dst
}

func appendArrayEvent(dst []byte, e *kvindex.Event) []byte {
	switch e.Kind {
	case kvindex.Cleared:
		return appendText(append(dst, 0x91), kindName(e.Kind))
	case kvindex.Removed:
		dst = appendText(append(dst, 0x93), kindName(e.Kind))
		dst = appendHashes(dst, e.Hashes, appendSigned)
	default:
		dst = appendText(append(dst, 0x97), kindName(e.Kind))
		dst = appendHashes(dst, e.Hashes, appendSigned)
		dst = appendParent(dst, e, appendSigned)
		dst = appendTokens(dst, e.Tokens)
		dst = append(appendUint(dst, uint64(e.BlockSize)), mpNil)
	}
	if name := mediumName(e.Tier); name != "" {
		return appendText(dst, name)
	}
	return append(dst, mpNil)
}

func kindName(k kvindex.Kind) string {
	switch k {
	case kvindex.Removed:
		return "BlockRemoved"
	case kvindex.Cleared:
		return "AllBlocksCleared"
	}
	return "BlockStored"
}

// mediumName names the fastest medium of t: an event speaks of one.
func mediumName(t kvindex.Tier) string {
	switch {
	case t&kvindex.Device != 0:
		return "GPU"
	case t&kvindex.Host != 0:
		return "CPU"
	case t&kvindex.Disk != 0:
		return "DISK"
	}
	return ""
}

func appendHashes(dst []byte, hashes []uint64, one func([]byte, uint64) []byte) []byte {
	dst = appendArrayLen(dst, len(hashes))
	for _, h := range hashes {
		dst = one(dst, h)
	}
	return dst
}

func appendParent(dst []byte, e *kvindex.Event, one func([]byte, uint64) []byte) []byte {
	if !e.HasParent {
		return append(dst, mpNil)
	}
	return one(dst, e.Parent)
}

func appendTokens(dst []byte, tokens []uint32) []byte {
	dst = appendArrayLen(dst, len(tokens))
	for _, t := range tokens {
		dst = appendUint(dst, uint64(t))
	}
	return dst
}

func appendArrayLen(dst []byte, n int) []byte {
	switch {
	case n < 16:
		return append(dst, 0x90|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, mpArray16), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, mpArray32), uint32(n))
}

func appendText(dst []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		dst = append(dst, 0xa0|byte(n))
	case n <= math.MaxUint8:
		dst = append(dst, mpStr8, byte(n))
	case n <= math.MaxUint16:
		dst = binary.BigEndian.AppendUint16(append(dst, mpStr16), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, mpStr32), uint32(n))
	}
	return append(dst, s...)
}

func appendUint(dst []byte, v uint64) []byte {
	switch {
	case v < 0x80:
		return append(dst, byte(v))
	case v <= math.MaxUint8:
		return append(dst, mpUint8, byte(v))
	case v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, mpUint16), uint16(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, mpUint32), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, mpUint64), v)
}

// appendSigned appends v's bits as a signed integer in its shortest form.
func appendSigned(dst []byte, bits uint64) []byte {
	v := int64(bits)
	switch {
	case v >= 0:
		return appendUint(dst, bits)
	case v >= -32:
		return append(dst, byte(v))
	case v >= math.MinInt8:
		return append(dst, mpInt8, byte(v))
	case v >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(dst, mpInt16), uint16(v))
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(dst, mpInt32), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, mpInt64), bits)
}
