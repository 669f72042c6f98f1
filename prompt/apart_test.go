package prompt_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/picker"
	"pointsman/prompt"
	"pointsman/wire"
)

// kin is a request that differs from the others of its list only in what must
// keep its blocks apart.
type kin struct {
	name  string
	extra string // members of the body
	model string
	keys  wire.Keys // of the events of an engine that has served it
	same  string    // shares the blocks of the one with that name; "" for its own alone
}

func relatives() []kin {
	return []kin{
		{name: "plain"},
		{name: "salt a", extra: `,"cache_salt":"a"`, keys: wire.Keys{Salt: "a"}},
		{name: "salt b", extra: `,"cache_salt":"b"`, keys: wire.Keys{Salt: "b"}},
		{name: "adapter a", extra: `,"lora_path":"a"`, keys: wire.Keys{LoRA: "a"}},
		{name: "adapter b", extra: `,"lora_path":"b"`, keys: wire.Keys{LoRA: "b"}},
		{name: "adapter a, by its name", model: "a", same: "adapter a"},
		{name: "an alias", model: "other name", same: "plain"},
		{name: "adapter a, salt b", extra: `,"lora_path":"a","cache_salt":"b"`, keys: wire.Keys{LoRA: "a", Salt: "b"}},
	}
}

// prepared is k with a prompt of 64 tokens.
func (k *kin) prepared(t *testing.T) *prompt.Prepared {
	t.Helper()
	p := prompt.NewPreparer(prompt.Config{}, nil)
	p.SetNames(func(name string) (model, adapter string) {
		if name == "a" {
			return "m", "a"
		}
		return "m", ""
	})
	model := k.model
	if model == "" {
		model = "m"
	}
	ids := strings.Trim(strings.ReplaceAll(fmt.Sprint(tokenIDs()), " ", ","), "[]")
	return prepareWith(t, p, prompt.Completions, `{"model":"`+model+`","prompt":[`+ids+`]`+k.extra+`}`)
}

func tokenIDs() (ids []uint32) {
	for i := range uint32(64) {
		ids = append(ids, 100+i)
	}
	return ids
}

func prepareWith(t *testing.T, p *prompt.Preparer, kind prompt.Kind, body string) *prompt.Prepared {
	t.Helper()
	var r prompt.Request
	if err := r.Scan(kind, nil, []byte(body)); err != nil {
		t.Fatal(err)
	}
	out := new(prompt.Prepared)
	p.Prepare(t.Context(), &r, []int{16}, out)
	return out
}

// serve has the index learn, by the bytes of an engine's event, that worker holds
// the prompt's blocks.
func (k *kin) serve(t *testing.T, index *kvindex.Index, worker string) {
	t.Helper()
	raw := wire.AppendVLLMKeys(nil, &kvindex.Batch{Rank: -1, Events: []kvindex.Event{{
		Kind: kvindex.Stored, Hashes: []uint64{1, 2, 3, 4}, Tokens: tokenIDs(), BlockSize: 16,
	}}}, []wire.Keys{k.keys})
	var batch kvindex.Batch
	if err := wire.DecodeBatch(raw, &batch); err != nil {
		t.Fatal(err)
	}
	index.Feed(worker).Apply(&batch, time.Unix(1000, 0))
}

// TestHitsNeverCrossAdaptersAndSalts has one engine serve each relative of a
// prompt; each must be found on its own engine, whole, and nowhere else.
func TestHitsNeverCrossAdaptersAndSalts(t *testing.T) {
	index := kvindex.New(kvindex.DefaultConfig())
	all := relatives()
	for i := range all {
		if all[i].same == "" {
			all[i].serve(t, index, all[i].name)
		}
	}
	for i := range all {
		k := &all[i]
		out := k.prepared(t)
		if out.Approx || len(out.Blocks) != 1 {
			t.Fatalf("%s: %+v", k.name, out)
		}
		var found kvindex.Scratch
		index.Lookup(out.Blocks[0].Hashes, &found)
		for j := range all {
			want := 0
			if all[j].name == k.name && k.same == "" || all[j].name == k.same {
				want = 4
			}
			if got := found.Depth(index.Instance(all[j].name)); got != want {
				t.Errorf("%q finds %d blocks on the engine that served %q, want %d", k.name, got, all[j].name, want)
			}
		}
	}
}

// TestApproximatedHitsNeverCrossEither is the same of texts, and of images in
// them, which are matched with this router's own picks only.
func TestApproximatedHitsNeverCrossEither(t *testing.T) {
	index := kvindex.New(kvindex.DefaultConfig())
	image := func(url string) string {
		return `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + url + `"}},{"type":"text","text":"` + strings.Repeat("what is it? ", 40) + `"}]}]`
	}
	text := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("what is it? ", 40) + `"}]`
	bodies := map[string]string{
		"text": text + `}`, "salt a": text + `,"cache_salt":"a"}`, "salt b": text + `,"cache_salt":"b"}`, "adapter": text + `,"lora_path":"a"}`,
		"cat": image("https://cdn/cat.png") + `}`, "dog": image("https://cdn/dog.png") + `}`, "cat, salted": image("https://cdn/cat.png") + `,"cache_salt":"a"}`,
	}
	p := prompt.NewPreparer(prompt.Config{}, nil)
	for name, body := range bodies {
		out := prepareWith(t, p, prompt.Chat, body)
		index.Predict(index.Instance(name), out.Blocks[0].Hashes, time.Unix(1000, 0), 0)
	}
	for name, body := range bodies {
		out := prepareWith(t, p, prompt.Chat, body)
		var found kvindex.Scratch
		index.Lookup(out.Blocks[0].Hashes, &found)
		for other := range bodies {
			depth := found.Depth(index.Instance(other))
			if other == name && depth != len(out.Blocks[0].Hashes) || other != name && depth != 0 {
				t.Errorf("%q finds %d of %d blocks with %q", name, depth, len(out.Blocks[0].Hashes), other)
			}
		}
	}
}

// TestImagesSteerToTheWorkerThatHasSeenThem picks by image affinity, as Infera's
// mm_affinity_colocates_repeat_image has it (rust/router/tests/functional.rs),
// and has prompts with images claim no hit.
func TestImagesSteerToTheWorkerThatHasSeenThem(t *testing.T) {
	store := new(fleet.Store)
	var workers []*fleet.Worker
	for _, id := range []string{"a", "b", "c"} {
		workers = append(workers, &fleet.Worker{ID: id, Host: id, Port: 1, Model: "m", BlockSize: 16, DPRank: -1})
	}
	fleet.NewFeed(store).Replace(workers)
	cfg := picker.DefaultConfig()
	cfg.Policy, cfg.OverlapWeight, cfg.Seed = picker.KVAware, 20, 1
	pick, err := picker.New(cfg, store, kvindex.New(kvindex.DefaultConfig()), breaker.NewSet(breaker.DefaultConfig()))
	if err != nil {
		t.Fatal(err)
	}
	p := prompt.NewPreparer(prompt.Config{}, nil)
	now := time.Unix(1000, 0)
	send := func(url string) picker.Decision {
		var r prompt.Request
		var out prompt.Prepared
		body := `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + url + `"}},{"type":"text","text":"what is it?"}]}]}`
		if err := r.Scan(prompt.Chat, nil, []byte(body)); err != nil {
			t.Fatal(err)
		}
		p.Prepare(t.Context(), &r, pick.BlockSizes("m", nil), &out)
		d, err := pick.Pick(now, &picker.Request{
			Model: "m", Tokens: out.Tokens, Blocks: out.Blocks, Approx: out.Approx, Reason: out.Reason, Multimodal: r.Multimodal, Images: r.Images,
		})
		if err != nil {
			t.Fatal(err)
		}
		d.FirstToken(now)
		d.Done(now, breaker.Success)
		if d.HitTokens != 0 || d.Reason != prompt.ReasonMultimodal {
			t.Errorf("%s: hit of %d tokens claimed, reason %s", url, d.HitTokens, d.Reason)
		}
		return d
	}
	home := map[string]string{}
	for range 5 {
		for i := range 6 {
			url := fmt.Sprintf("https://cdn/%d.png", i)
			d := send(url)
			if was, known := home[url]; known && was != d.Worker.ID {
				t.Errorf("%s went to %s, and before to %s", url, d.Worker.ID, was)
			}
			home[url] = d.Worker.ID
		}
	}
	used := map[string]bool{}
	for _, id := range home {
		used[id] = true
	}
	if len(used) < 2 {
		t.Errorf("six images all went to %v", used)
	}
}
