package wire

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"pointsman/kvindex"
)

// FuzzDecodeBatch checks that nothing a publisher sends makes the decoder
// panic, hold more than a few times the message, or read other than what an
// independent decoder reads, and that what it has read survives both encoders.
func FuzzDecodeBatch(f *testing.F) {
	f.Add(unhex(f, vectorVLLM))
	f.Add(unhex(f, vectorSGLang))
	f.Add(AppendSGLang(nil, benchBatch(2, 3)))
	f.Add(AppendVLLMKeys(nil, benchBatch(2, 3), []Keys{{LoRA: "a", Salt: "b"}}))
	f.Add(pack(f, list{1, list{list{"BlockRemoved", list{[]byte("0123456789abcdef")}, "DISK"}, nil, list{"?"}}, nil}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		b := new(kvindex.Batch)
		err := DecodeBatch(payload, b)
		if err != nil {
			if !errors.Is(err, ErrBatch) || len(b.Events) != 0 {
				t.Fatalf("error %v with %d events", err, len(b.Events))
			}
			return
		}
		values := 0
		for i := range b.Events {
			values += len(b.Events[i].Hashes) + len(b.Events[i].Tokens)
		}
		if values > 2*len(payload) || len(b.Events)+b.Skipped > len(payload) {
			t.Fatalf("%d values, %d events of %d bytes", values, len(b.Events), len(payload))
		}
		differential(t, payload, b)
		for i := range b.Events {
			b.Events[i].Extra = 0 // cannot be undone, hence is not encoded
		}
		b.Skipped = 0
		for _, encode := range []func([]byte, *kvindex.Batch) []byte{AppendVLLM, AppendSGLang} {
			if again := decode(t, encode(nil, b)); !same(again, b) && !math.IsNaN(b.At) {
				t.Fatalf("encoded and decoded again\n%+v\nwant\n%+v", again, b)
			}
		}
	})
}

// differential compares b with what vmihailenco/msgpack makes of payload, in
// the events that both can tell.
func differential(t *testing.T, payload []byte, b *kvindex.Batch) {
	t.Helper()
	dec := msgpack.NewDecoder(bytes.NewReader(payload))
	v, err := dec.DecodeInterfaceLoose()
	if err != nil {
		return // it knows fewer extensions and wants hashable keys
	}
	batch, ok := v.([]any)
	if !ok || len(batch) < 2 {
		t.Fatalf("decoded %v as a batch", v)
	}
	events, ok := batch[1].([]any)
	if !ok {
		t.Fatalf("decoded %v as events", batch[1])
	}
	if len(events) < len(b.Events)+b.Skipped {
		t.Fatalf("%d events and %d skipped of %d", len(b.Events), b.Skipped, len(events))
	}
	next := 0
	for _, raw := range events {
		e, ok := raw.([]any)
		if !ok || len(e) != 5 || e[0] != "BlockStored" {
			continue
		}
		tokens, ok := plainTokens(e[3])
		if !ok {
			continue
		}
		for ; next < len(b.Events); next++ {
			if got := &b.Events[next]; got.Kind == kvindex.Stored && equalTokens(got.Tokens, tokens) {
				break
			}
		}
		if next == len(b.Events) && b.Skipped == 0 {
			t.Fatalf("no event with the tokens %v in %+v", tokens, b.Events)
		}
	}
}

func plainTokens(v any) ([]int64, bool) {
	raw, ok := v.([]any)
	if !ok {
		return nil, false
	}
	tokens := make([]int64, len(raw))
	for i, r := range raw {
		switch n := r.(type) {
		case int64:
			tokens[i] = n
		case uint64:
			tokens[i] = int64(n)
		default:
			return nil, false
		}
	}
	return tokens, true
}

func equalTokens(a []uint32, b []int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if int64(a[i]) != b[i] {
			return false
		}
	}
	return true
}

// FuzzDifferential builds valid batches from fuzzed numbers, encodes them with
// vmihailenco/msgpack and wants every field back.
func FuzzDifferential(f *testing.F) {
	f.Add(uint64(1)<<63, int64(-5), uint32(70000), uint8(3), true)
	f.Add(uint64(0), int64(5), uint32(0), uint8(0), false)
	f.Fuzz(func(t *testing.T, hash uint64, parent int64, token uint32, n uint8, asMap bool) {
		want := kvindex.Event{BlockSize: 2, HasParent: true, Parent: uint64(parent), Tier: kvindex.Host}
		hashes, tokens := list{}, list{}
		for i := range uint64(n) {
			h, a, b := hash+i, token+uint32(i), token^uint32(i)
			want.Hashes, want.Tokens = append(want.Hashes, h), append(want.Tokens, a, b)
			hashes, tokens = append(hashes, h), append(tokens, a, b)
		}
		var event any = list{"BlockStored", hashes, parent, tokens, 2, nil, "CPU"}
		if asMap {
			event = dict{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": 2, "medium": "CPU"}
		}
		got := decode(t, pack(t, list{2.5, list{event}, int(n)}))
		if !same(got, &kvindex.Batch{At: 2.5, Rank: int(n), Events: []kvindex.Event{want}}) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	})
}
