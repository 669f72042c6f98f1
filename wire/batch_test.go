package wire

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/zeebo/xxh3"

	"pointsman/kvindex"
)

func unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// pack encodes v with an encoder that is not ours.
func pack(tb testing.TB, v any) []byte {
	tb.Helper()
	b, err := msgpack.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

type (
	list = []any
	dict = map[string]any
)

func decode(tb testing.TB, payload []byte) *kvindex.Batch {
	tb.Helper()
	b := new(kvindex.Batch)
	if err := DecodeBatch(payload, b); err != nil {
		tb.Fatal(err)
	}
	return b
}

// same compares batches without telling nil slices from empty ones.
func same(a, b *kvindex.Batch) bool {
	if a.Rank != b.Rank || a.At != b.At || a.Skipped != b.Skipped || len(a.Events) != len(b.Events) {
		return false
	}
	for i := range a.Events {
		x, y := a.Events[i], b.Events[i]
		for _, e := range []*kvindex.Event{&x, &y} {
			e.Hashes = append([]uint64{}, e.Hashes...)
			e.Tokens = append([]uint32{}, e.Tokens...)
		}
		if !reflect.DeepEqual(x, y) {
			return false
		}
	}
	return true
}

func upTo(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i + 1)
	}
	return tokens
}

const (
	vectorVLLM   = "93cb3ff80000000000009187a474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573926566b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473980102030405060708aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055c0"
	vectorSGLang = "93cb3ff80000000000009197ab426c6f636b53746f72656492fb66c098010203040506070804c0a347505500"
)

// The hex vectors were computed with the engines' own encoder, msgspec (§4.3).
func TestVectorsDecodeAndEncodeToTheSameBytes(t *testing.T) {
	event := func(e string) string { return "93cb3ff800000000000091" + e + "c0" }
	minus5 := ^uint64(0) - 4
	for _, c := range []struct {
		name, hex string
		encode    func([]byte, *kvindex.Batch) []byte
		rank      int
		want      kvindex.Event
	}{
		{"vLLM stored", vectorVLLM, AppendVLLM, -1, kvindex.Event{
			Hashes: []uint64{101, 102}, Tokens: upTo(8), BlockSize: 4, Tier: kvindex.Device,
		}},
		{"SGLang stored, one hash below 0", vectorSGLang, AppendSGLang, 0, kvindex.Event{
			Hashes: []uint64{minus5, 102}, Tokens: upTo(8), BlockSize: 4, Tier: kvindex.Device,
		}},
		{
			"vLLM removed", event("83a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739165a66d656469756da3475055"), AppendVLLM, -1,
			kvindex.Event{Kind: kvindex.Removed, Hashes: []uint64{101}, Tier: kvindex.Device},
		},
		{
			"SGLang removed", event("93ac426c6f636b52656d6f7665649165c0"), AppendSGLang, -1,
			kvindex.Event{Kind: kvindex.Removed, Hashes: []uint64{101}},
		},
		{"vLLM cleared", event("81a474797065b0416c6c426c6f636b73436c6561726564"), AppendVLLM, -1, kvindex.Event{Kind: kvindex.Cleared}},
		{"SGLang cleared", event("91b0416c6c426c6f636b73436c6561726564"), AppendSGLang, -1, kvindex.Event{Kind: kvindex.Cleared}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := decode(t, unhex(t, c.hex))
			want := &kvindex.Batch{Rank: c.rank, At: 1.5, Events: []kvindex.Event{c.want}}
			if !same(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if back := hex.EncodeToString(c.encode(nil, got)); back != c.hex {
				t.Errorf("encoded\n%s\nwant\n%s", back, c.hex)
			}
		})
	}
}

func TestCapturedMessages(t *testing.T) {
	file, err := os.Open("testdata/events.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c struct {
			Name    string
			Frames  []string
			Decoded []json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		t.Run(c.Name, func(t *testing.T) {
			got := decode(t, unhex(t, c.Frames[len(c.Frames)-1]))
			if want := capturedEvents(t, c.Decoded[1]); !same(got, &kvindex.Batch{Rank: got.Rank, At: got.At, Events: want}) {
				t.Errorf("got  %+v\nwant %+v", got.Events, want)
			}
		})
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
}

// capturedEvents reads what the capture's own decoder said.
func capturedEvents(t *testing.T, raw json.RawMessage) []kvindex.Event {
	t.Helper()
	var events []json.RawMessage
	if err := json.Unmarshal(raw, &events); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]kvindex.Kind{"BlockStored": kvindex.Stored, "BlockRemoved": kvindex.Removed, "AllBlocksCleared": kvindex.Cleared}
	out := make([]kvindex.Event, len(events))
	for i, raw := range events {
		e := &out[i]
		if raw[0] == '{' {
			var m struct {
				Type      string   `json:"type"`
				Hashes    []uint64 `json:"block_hashes"`
				Tokens    []uint32 `json:"token_ids"`
				BlockSize int      `json:"block_size"`
			}
			if err := json.Unmarshal(raw, &m); err != nil {
				t.Fatal(err)
			}
			*e = kvindex.Event{Kind: kinds[m.Type], Hashes: m.Hashes, Tokens: m.Tokens, BlockSize: m.BlockSize, Tier: kvindex.Device}
			continue
		}
		var name string
		var signed []int64
		parts := []any{&name, &signed}
		var parent any
		parts = append(parts, &parent, &e.Tokens, &e.BlockSize)
		var elements []json.RawMessage
		if err := json.Unmarshal(raw, &elements); err != nil {
			t.Fatal(err)
		}
		for j := range min(len(elements), len(parts)) {
			if string(elements[j]) == `"GPU"` {
				continue
			}
			if err := json.Unmarshal(elements[j], parts[j]); err != nil {
				t.Fatal(err)
			}
		}
		e.Kind = kinds[name]
		if e.Kind != kvindex.Cleared {
			e.Tier = kvindex.Device
		}
		for _, h := range signed {
			e.Hashes = append(e.Hashes, uint64(h))
		}
	}
	return out
}

func TestOneEvent(t *testing.T) {
	bin := []byte("0123456789abcdef0123456789abcdef")
	stored := func(edit func(e *kvindex.Event)) []kvindex.Event {
		e := kvindex.Event{Hashes: []uint64{1, 2}, Tokens: upTo(4), BlockSize: 2}
		if edit != nil {
			edit(&e)
		}
		return []kvindex.Event{e}
	}
	vllm := func(more ...any) dict {
		m := dict{"type": "BlockStored", "block_hashes": list{1, 2}, "parent_block_hash": nil, "token_ids": list{1, 2, 3, 4}, "block_size": 2, "lora_id": nil}
		for i := 0; i < len(more); i += 2 {
			m[more[i].(string)] = more[i+1]
		}
		return m
	}
	sglang := func(more ...any) list {
		return append(list{"BlockStored", list{1, 2}, nil, list{1, 2, 3, 4}, 2}, more...)
	}
	for _, c := range []struct {
		name  string
		event any
		want  []kvindex.Event // none: left out
	}{
		{"a map with nothing optional", vllm(), stored(nil)},
		{"an array with nothing optional", sglang(), stored(nil)},
		{"an array that goes on", sglang(nil, "GPU", nil, nil, 0, "full_attention", dict{"a": list{list{}}}), stored(func(e *kvindex.Event) { e.Tier = kvindex.Device })},
		{"an array whose newer elements mean something else", sglang(nil, nil, 7, "x", "y", list{1}), stored(nil)},
		{"keys that are not known", vllm("rack", dict{"deep": list{nil, true, 1.5}}), stored(nil)},
		{"a parent", vllm("parent_block_hash", 9), stored(func(e *kvindex.Event) { e.HasParent, e.Parent = true, 9 })},
		{"a parent of value 0", vllm("parent_block_hash", 0), stored(func(e *kvindex.Event) { e.HasParent = true })},
		{"a parent below 0", append(sglang()[:2:2], -1, list{1, 2, 3, 4}, 2), stored(func(e *kvindex.Event) { e.HasParent, e.Parent = true, ^uint64(0) })},
		{"hashes of 32 bytes (K13)", vllm("block_hashes", list{bin, bin[1:]}, "parent_block_hash", bin), stored(func(e *kvindex.Event) {
			e.Hashes = []uint64{xxh3.Hash(bin), xxh3.Hash(bin[1:])}
			e.HasParent, e.Parent = true, xxh3.Hash(bin)
		})},
		{"every width of integer", vllm("block_hashes", list{int8(-100), int16(-1000), int32(-100000), int64(-1e15), uint8(200), uint16(60000), uint32(4e9), uint64(1 << 63)}, "token_ids", list{uint8(200), uint16(60000), uint32(4e9), uint64(7), int8(1), int16(300), int32(70000), int64(5)}, "block_size", 1), []kvindex.Event{{
			Hashes: []uint64{^uint64(99), ^uint64(999), ^uint64(99999), ^uint64(1e15 - 1), 200, 60000, 4e9, 1 << 63},
			Tokens: []uint32{200, 60000, 4e9, 7, 1, 300, 70000, 5}, BlockSize: 1,
		}}},
		{"pairs of tokens (EAGLE)", vllm("token_ids", list{list{1, 2}, list{2, 3}, list{3, 4}, list{4}}), stored(nil)},
		{"a block size left out", dict{"type": "BlockStored", "block_hashes": list{1, 2}, "token_ids": list{1, 2, 3, 4}}, stored(nil)},
		{"full attention", vllm("kv_cache_spec_kind", "full_attention", "group_idx", 0), stored(nil)},
		{"MLA", vllm("kv_cache_spec_kind", "mla_attention"), stored(nil)},
		{"attention with sinks", vllm("kv_cache_spec_kind", "sink_full_attention"), stored(nil)},
		{"a sliding window is left out", vllm("kv_cache_spec_kind", "sliding_window"), nil},
		{"a Mamba group is left out", vllm("kv_cache_spec_kind", "mamba", "group_idx", 1), nil},
		{"a Mamba group in an array is left out", sglang(nil, "GPU", nil, nil, 1, "mamba"), nil},
		{"on the host", vllm("medium", "CPU"), stored(func(e *kvindex.Event) { e.Tier = kvindex.Host })},
		{"on the host, by another name", vllm("medium", "CPU_PINNED"), stored(func(e *kvindex.Event) { e.Tier = kvindex.Host })},
		{"on a device by another name", vllm("medium", "cuda:0"), stored(func(e *kvindex.Event) { e.Tier = kvindex.Device })},
		{"on a disk", vllm("medium", "DISK"), stored(func(e *kvindex.Event) { e.Tier = kvindex.Disk })},
		{"on storage", vllm("medium", "external_storage"), stored(func(e *kvindex.Event) { e.Tier = kvindex.Disk })},
		{"on something new", vllm("medium", strings.Repeat("q", 99)), stored(func(e *kvindex.Event) { e.Tier = kvindex.Disk })},
		{"removed, with what only a stored event has", dict{"type": "BlockRemoved", "block_hashes": list{7}, "medium": "CPU", "token_ids": list{1}, "lora_name": "a"}, []kvindex.Event{{Kind: kvindex.Removed, Hashes: []uint64{7}, Tier: kvindex.Host}}},
		{"an adapter by name", vllm("lora_name", "sql", "lora_id", 3), stored(func(e *kvindex.Event) { e.Extra = kvindex.Extra("sql", "") })},
		{"an adapter by number", sglang(3), stored(func(e *kvindex.Event) { e.Extra = kvindex.Extra("lora_id:3", "") })},
		{"an adapter by name where its number goes", sglang("sql"), stored(func(e *kvindex.Event) { e.Extra = kvindex.Extra("sql", "") })},
		{"adapter 0 is the base model", vllm("lora_id", 0), stored(nil)},
		{"an adapter in a later event is in its parent's chain", vllm("parent_block_hash", 9, "lora_name", "sql", "extra_keys", list{list{"sql"}, list{"sql"}}), stored(func(e *kvindex.Event) { e.HasParent, e.Parent = true, 9 })},
		{"a salt", vllm("extra_keys", list{list{"pepper"}, nil}), stored(func(e *kvindex.Event) { e.Extra = kvindex.Extra("", "pepper") })},
		{"a salt of its own", vllm("cache_salt", "pepper"), stored(func(e *kvindex.Event) { e.Extra = kvindex.Extra("", "pepper") })},
		{"an adapter and a salt", vllm("lora_name", "sql", "extra_keys", list{list{"sql", "pepper"}, list{"sql"}}), stored(func(e *kvindex.Event) { e.Extra = kvindex.Extra("sql", "pepper") })},
		{"an adapter and a salt in an array", sglang(3, "GPU", "sql", list{list{"sql", "pepper"}, list{"sql"}}), stored(func(e *kvindex.Event) {
			e.Extra, e.Tier = kvindex.Extra("sql", "pepper"), kvindex.Device
		})},
		{"extra keys of nothing", vllm("extra_keys", list{nil, list{}}), stored(nil)},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := decode(t, pack(t, list{1.5, list{c.event}, 3}))
			if want := (&kvindex.Batch{Rank: 3, At: 1.5, Events: c.want}); !same(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestBlocksWithDifferentImagesDiffer(t *testing.T) {
	event := func(keys any) dict {
		return dict{"type": "BlockStored", "block_hashes": list{1, 2, 3}, "token_ids": list{5, 5, 5, 5, 5, 5}, "block_size": 2, "extra_keys": keys}
	}
	cat, dog := strings.Repeat("a", 64), strings.Repeat("b", 64)
	tokens := func(keys any) [3][2]uint32 {
		got := decode(t, pack(t, list{1, list{event(keys)}}))
		if len(got.Events) != 1 || got.Events[0].Extra != 0 {
			t.Fatalf("keys %v: got %+v", keys, got)
		}
		p := got.Events[0].Tokens
		return [3][2]uint32{{p[0], p[1]}, {p[2], p[3]}, {p[4], p[5]}}
	}
	none := tokens(nil)
	a, b := tokens(list{nil, list{cat}, nil}), tokens(list{nil, list{dog}, nil})
	if a[0] != none[0] || a[2] != none[2] {
		t.Errorf("blocks without an image changed: %v", a)
	}
	if a[1] == none[1] || a[1] == b[1] {
		t.Errorf("block with a cat %v, with a dog %v, with neither %v", a[1], b[1], none[1])
	}
	if again := tokens(list{nil, list{cat}, nil}); again != a {
		t.Errorf("the same image gives %v and %v", a, again)
	}
	if at := tokens(list{list{cat}, list{list{cat, 3}}, list{7}}); at[0] == none[0] || at[1] == none[1] || at[1] == a[1] || at[2] == none[2] {
		t.Errorf("an image in the first block, one with an offset, one by number: %v", at)
	}
}

func TestAnUnusableEventIsPassedOverAlone(t *testing.T) {
	good := list{"BlockRemoved", list{1}, nil}
	stored := func(hashes, parent, tokens, size any) list { return list{"BlockStored", hashes, parent, tokens, size} }
	for name, bad := range map[string]any{
		"nil":                            nil,
		"a number":                       7,
		"an empty array":                 list{},
		"an empty map":                   dict{},
		"a map with a number as key":     map[any]any{1: 2},
		"a type that is a number":        list{1},
		"a type not known":               list{"BlockPinned", list{1}},
		"a map with a type not known":    dict{"type": "BlockPinned"},
		"stored without anything":        list{"BlockStored"},
		"removed without anything":       dict{"type": "BlockRemoved"},
		"hashes that are no array":       stored(7, nil, list{1}, 1),
		"hashes that are nil":            stored(nil, nil, list{1}, 1),
		"a hash that is a float":         stored(list{1.5}, nil, list{1}, 1),
		"a hash that is nil":             list{"BlockRemoved", list{nil}},
		"a parent that is an array":      stored(list{1}, list{}, list{1}, 1),
		"tokens that are a string":       stored(list{1}, nil, "abc", 1),
		"a token below 0":                stored(list{1}, nil, list{-1}, 1),
		"a token beyond 32 bits":         stored(list{1}, nil, list{int64(1) << 32}, 1),
		"a token that is a float":        stored(list{1}, nil, list{1.5}, 1),
		"a pair after a token":           stored(list{1}, nil, list{1, list{2, 3}}, 1),
		"a token after a pair":           stored(list{1}, nil, list{list{1, 2}, 2}, 1),
		"an empty pair":                  stored(list{1}, nil, list{list{}}, 1),
		"a block size of 0":              stored(list{1}, nil, list{1}, 0),
		"a block size below 0":           stored(list{1}, nil, list{1}, -1),
		"a block size beyond reason":     stored(list{1}, nil, list{1}, 1<<40),
		"a block size that is a string":  stored(list{1}, nil, list{1}, "16"),
		"no block size, and no guess":    stored(list{1, 2}, nil, list{1, 2, 3}, nil),
		"a medium that is a number":      list{"BlockRemoved", list{1}, 7},
		"more keys than blocks":          dict{"type": "BlockStored", "block_hashes": list{1}, "token_ids": list{1}, "block_size": 1, "extra_keys": list{nil, list{7}}},
		"extra keys that are a string":   dict{"type": "BlockStored", "block_hashes": list{1}, "token_ids": list{1}, "block_size": 1, "extra_keys": "x"},
		"a block's keys are a string":    dict{"type": "BlockStored", "block_hashes": list{1}, "token_ids": list{1}, "block_size": 1, "extra_keys": list{"x"}},
		"a lora name that is a number":   dict{"type": "BlockStored", "block_hashes": list{1}, "token_ids": list{1}, "block_size": 1, "lora_name": 7},
		"a cache group that is a number": dict{"type": "BlockStored", "block_hashes": list{1}, "token_ids": list{1}, "block_size": 1, "kv_cache_spec_kind": 7},
	} {
		t.Run(name, func(t *testing.T) {
			got := decode(t, pack(t, list{1, list{good, bad, good}, nil}))
			one := kvindex.Event{Kind: kvindex.Removed, Hashes: []uint64{1}}
			want := &kvindex.Batch{Rank: -1, At: 1, Skipped: 1, Events: []kvindex.Event{one, one}}
			if !same(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestBatches(t *testing.T) {
	for _, c := range []struct {
		name  string
		batch any
		want  kvindex.Batch
	}{
		{"without a rank", list{1.5, list{}}, kvindex.Batch{Rank: -1, At: 1.5}},
		{"with a rank", list{1.5, list{}, 7}, kvindex.Batch{Rank: 7, At: 1.5}},
		{"with a rank below 0", list{1.5, list{}, -7}, kvindex.Batch{Rank: -1, At: 1.5}},
		{"with a rank that is a string", list{1.5, list{}, "0"}, kvindex.Batch{Rank: -1, At: 1.5}},
		{"with more than a rank", list{1.5, list{}, 0, dict{"a": 1}, list{}}, kvindex.Batch{Rank: 0, At: 1.5}},
		{"with a whole number as time", list{3, list{}}, kvindex.Batch{Rank: -1, At: 3}},
		{"with a single-precision time", list{float32(0.5), list{}}, kvindex.Batch{Rank: -1, At: 0.5}},
		{"with a time below 0", list{-3, list{}}, kvindex.Batch{Rank: -1, At: -3}},
	} {
		if got := decode(t, pack(t, c.batch)); !same(got, &c.want) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestWhatIsNoBatch(t *testing.T) {
	whole := unhex(t, vectorVLLM)
	cases := map[string][]byte{
		"nothing":                       nil,
		"a map":                         pack(t, dict{"ts": 1}),
		"a string":                      pack(t, "hello"),
		"a time alone":                  pack(t, list{1.5}),
		"a time that is a string":       pack(t, list{"now", list{}}),
		"events that are a map":         pack(t, list{1.5, dict{}}),
		"bytes behind it":               append(append([]byte{}, whole...), 0),
		"4 G of events announced":       {0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"4 G of hashes announced":       append([]byte{0x92, 0x01, 0x91, 0x92, 0xa4}, "type\xdd\xff\xff\xff\xff"...),
		"4 G of string announced":       {0x92, 0x01, 0x91, 0xdb, 0xff, 0xff, 0xff, 0xff, 'x'},
		"4 G of map announced":          {0x92, 0x01, 0x91, 0xdf, 0xff, 0xff, 0xff, 0xff, 1, 1},
		"4 G of extension announced":    {0x92, 0x01, 0x91, 0xc9, 0xff, 0xff, 0xff, 0xff, 1, 1},
		"the byte that is never used":   {0x92, 0x01, 0x91, 0xc1},
		"nested without end":            append([]byte{0x92, 0x01}, strings.Repeat("\x91", 1<<20)...),
		"nested without end, in events": append([]byte{0x92, 0x01, 0x91, 0x92, 0x01}, strings.Repeat("\x91", 1<<20)...),
	}
	for i := range whole {
		cases["cut at "+string(rune('0'+i/100))+string(rune('0'+i/10%10))+string(rune('0'+i%10))] = whole[:i]
	}
	for name, payload := range cases {
		b := &kvindex.Batch{Events: []kvindex.Event{{}}, Skipped: 9}
		if err := DecodeBatch(payload, b); !errors.Is(err, ErrBatch) {
			t.Errorf("%s: error %v, want one in the chain of ErrBatch", name, err)
		}
		if len(b.Events) != 0 || b.Skipped != 0 {
			t.Errorf("%s: left %+v behind", name, b)
		}
	}
}

func TestDeepNestingInAnUnknownFieldIsSkipped(t *testing.T) {
	deep := append([]byte(strings.Repeat("\x91", 100_000)), 0xc0)
	payload := append([]byte{0x92, 0x01, 0x91, 0x82, 0xa4}, "type"...)
	payload = append(append(payload, pack(t, "AllBlocksCleared")...), 0xa1, 'x')
	got := decode(t, append(payload, deep...))
	if len(got.Events) != 1 || got.Events[0].Kind != kvindex.Cleared {
		t.Errorf("got %+v", got)
	}
}

func TestTheTransportsFieldsStay(t *testing.T) {
	b := &kvindex.Batch{Seq: 7, HasSeq: true}
	if err := DecodeBatch(unhex(t, vectorVLLM), b); err != nil || b.Seq != 7 || !b.HasSeq {
		t.Errorf("got %+v, %v", b, err)
	}
}

func TestABatchHoldsNoReferenceToItsMessage(t *testing.T) {
	payload := pack(t, list{1, list{dict{"type": "BlockStored", "block_hashes": list{1, 2}, "token_ids": list{1, 2, 3, 4}, "block_size": 2, "lora_name": "sql"}}})
	b := decode(t, payload)
	want := b.Events[0].Extra
	clear(payload)
	if !reflect.DeepEqual(b.Events[0].Tokens, upTo(4)) || b.Events[0].Extra != want {
		t.Errorf("got %+v", b.Events[0])
	}
}

func TestMemoryIsUsedAgain(t *testing.T) {
	long := AppendVLLM(nil, benchBatch(4, 8))
	short := unhex(t, vectorSGLang)
	b := new(kvindex.Batch)
	for _, payload := range [][]byte{long, short, long} {
		if err := DecodeBatch(payload, b); err != nil {
			t.Fatal(err)
		}
		if fresh := decode(t, payload); !same(b, fresh) {
			t.Errorf("into used memory %+v\nfresh %+v", b, fresh)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		_ = DecodeBatch(long, b)
		_ = DecodeBatch(short, b)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestKeysAreEncodedAsVLLMDoes(t *testing.T) {
	b := &kvindex.Batch{Rank: -1, Events: []kvindex.Event{
		{Hashes: []uint64{1, 2}, Tokens: upTo(4), BlockSize: 2},
		{Hashes: []uint64{3}, Tokens: upTo(2), BlockSize: 2, HasParent: true, Parent: 2},
		{Hashes: []uint64{4}, Tokens: upTo(2), BlockSize: 2},
	}}
	got := decode(t, AppendVLLMKeys(nil, b, []Keys{{LoRA: "sql", Salt: "pepper"}, {LoRA: "sql", Salt: "pepper"}}))
	b.Events[0].Extra = kvindex.Extra("sql", "pepper")
	if !same(got, b) {
		t.Errorf("got  %+v\nwant %+v", got, b)
	}
	got = decode(t, AppendVLLMKeys(nil, b, []Keys{{Salt: "pepper"}}))
	b.Events[0].Extra = kvindex.Extra("", "pepper")
	if !same(got, b) {
		t.Errorf("got  %+v\nwant %+v", got, b)
	}
}
