package wire

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"pointsman/kvindex"
)

// randomBatch is any batch that can be encoded without a loss.
func randomBatch(rng *rand.Rand) *kvindex.Batch {
	b := &kvindex.Batch{Rank: rng.IntN(10) - 1, At: rng.Float64() * 2e9}
	for range rng.IntN(6) {
		e := kvindex.Event{Kind: kvindex.Kind(rng.IntN(3))}
		if e.Kind != kvindex.Cleared {
			e.Tier = []kvindex.Tier{0, kvindex.Device, kvindex.Host, kvindex.Disk}[rng.IntN(4)]
			for range rng.IntN(40) {
				e.Hashes = append(e.Hashes, rng.Uint64()>>rng.UintN(64))
			}
		}
		if e.Kind == kvindex.Stored {
			e.BlockSize = 1 + rng.IntN(70)
			if e.HasParent = rng.IntN(2) == 0; e.HasParent {
				e.Parent = rng.Uint64() >> rng.UintN(64)
			}
			for range len(e.Hashes) * e.BlockSize {
				e.Tokens = append(e.Tokens, rng.Uint32()>>rng.UintN(32))
			}
		}
		b.Events = append(b.Events, e)
	}
	return b
}

func TestAnyBatchSurvivesBothEncodings(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	into := new(kvindex.Batch)
	for range 500 {
		b := randomBatch(rng)
		for name, encode := range map[string]func([]byte, *kvindex.Batch) []byte{"vLLM": AppendVLLM, "SGLang": AppendSGLang} {
			prefix := []byte("before")
			payload := encode(prefix, b)
			if string(payload[:len(prefix)]) != "before" {
				t.Fatalf("%s: what was there before is gone", name)
			}
			if err := DecodeBatch(payload[len(prefix):], into); err != nil || !same(into, b) {
				t.Fatalf("%s: got %+v, %v\nwant %+v", name, into, err, b)
			}
		}
	}
}

// What we publish, read by a decoder that is not ours and by the names that the
// engines' consumers use.
func TestWhatAnEngineWouldHaveSent(t *testing.T) {
	b := &kvindex.Batch{Rank: 2, At: 1.5, Events: []kvindex.Event{
		{Hashes: []uint64{1 << 63, 2}, HasParent: true, Parent: 1<<64 - 1, Tokens: []uint32{7, 1 << 20}, BlockSize: 1, Tier: kvindex.Host},
		{Kind: kvindex.Removed, Hashes: []uint64{3}, Tier: kvindex.Disk},
		{Kind: kvindex.Cleared},
	}}
	type vllm struct {
		Type   string   `msgpack:"type"`
		Hashes []uint64 `msgpack:"block_hashes"`
		Parent *uint64  `msgpack:"parent_block_hash"`
		Tokens []uint32 `msgpack:"token_ids"`
		Size   int      `msgpack:"block_size"`
		Lora   *int     `msgpack:"lora_id"`
		Medium string   `msgpack:"medium"`
	}
	var batch struct {
		_msgpack struct{} `msgpack:",as_array"`
		At       float64
		Events   []vllm
		Rank     *int
	}
	if err := msgpack.Unmarshal(AppendVLLM(nil, b), &batch); err != nil {
		t.Fatal(err)
	}
	parent := uint64(1<<64 - 1)
	want := []vllm{
		{Type: "BlockStored", Hashes: []uint64{1 << 63, 2}, Parent: &parent, Tokens: []uint32{7, 1 << 20}, Size: 1, Medium: "CPU"},
		{Type: "BlockRemoved", Hashes: []uint64{3}, Medium: "DISK"},
		{Type: "AllBlocksCleared"},
	}
	if batch.At != 1.5 || batch.Rank == nil || *batch.Rank != 2 || !reflect.DeepEqual(batch.Events, want) {
		t.Errorf("vLLM: got %+v", batch)
	}

	var loose []any
	if err := msgpack.Unmarshal(AppendSGLang(nil, b), &loose); err != nil {
		t.Fatal(err)
	}
	wantLoose := []any{
		1.5, []any{
			[]any{"BlockStored", []any{int64(-1 << 63), int8(2)}, int8(-1), []any{int8(7), uint32(1 << 20)}, int8(1), nil, "CPU"},
			[]any{"BlockRemoved", []any{int8(3)}, "DISK"},
			[]any{"AllBlocksCleared"},
		}, int8(2),
	}
	if !reflect.DeepEqual(loose, wantLoose) {
		t.Errorf("SGLang: got %#v", loose)
	}
}

func TestKeysOfEveryShape(t *testing.T) {
	for _, c := range []struct {
		name   string
		keys   Keys
		parent bool
		want   any // extra_keys
	}{
		{"an adapter and a salt", Keys{LoRA: "sql", Salt: "s"}, false, list{list{"sql", "s"}, list{"sql"}}},
		{"an adapter and a salt behind a parent", Keys{LoRA: "sql", Salt: "s"}, true, list{list{"sql"}, list{"sql"}}},
		{"an adapter", Keys{LoRA: "sql"}, false, list{list{"sql"}, list{"sql"}}},
		{"a salt", Keys{Salt: "s"}, false, list{list{"s"}, nil}},
		{"neither", Keys{}, false, nil},
	} {
		b := &kvindex.Batch{Rank: -1, Events: []kvindex.Event{{Hashes: []uint64{1, 2}, Tokens: upTo(4), BlockSize: 2, HasParent: c.parent}}}
		var loose []any
		if err := msgpack.Unmarshal(AppendVLLMKeys(nil, b, []Keys{c.keys}), &loose); err != nil {
			t.Fatal(err)
		}
		event := loose[1].([]any)[0].(dict)
		if got := event["extra_keys"]; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: extra_keys %v, want %v", c.name, got, c.want)
		}
		if name, has := event["lora_name"]; has != (c.keys.LoRA != "") || has && name != c.keys.LoRA {
			t.Errorf("%s: lora_name %v", c.name, name)
		}
	}
}
