package lab_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"pointsman/internal/lab"
	"pointsman/internal/simengine"
)

func TestFitFindsTheConstantsOfTheSimulatedEngine(t *testing.T) {
	cfg := simengine.DefaultConfig()
	cfg.KV.Port, cfg.Time.Scale = -1, 500
	e, err := simengine.Start(context.WithoutCancel(t.Context()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if failed := e.Close(); failed != nil {
			t.Error(failed)
		}
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for i := range 24 {
		ids := make([]string, 2000)
		for k := range ids {
			ids[k] = fmt.Sprint(i*2000 + k)
		}
		body := fmt.Sprintf(`{"prompt":[%s],"max_tokens":8}`, strings.Join(ids, ","))
		var req *http.Request
		req, err = http.NewRequestWithContext(t.Context(), http.MethodPost, e.URL()+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var resp *http.Response
		resp, err = client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("status %d", resp.StatusCode)
		}
	}
	base, _ := lab.Preset(lab.DefaultPreset)
	f, err := lab.FitFrom(t.Context(), e.URL(), base)
	if err != nil {
		t.Fatal(err)
	}
	// A prompt takes one step: 10 ms and 2000 tokens at 16 a millisecond and less.
	if f.Engine.Rate < 13.5 || f.Engine.Rate > 16 {
		t.Errorf("prefill rate %.2f tokens/ms, want about 14.5", f.Engine.Rate)
	}
	if f.Engine.Step < 10*time.Millisecond || f.Engine.Step > 11*time.Millisecond {
		t.Errorf("step of %v, want about 10 ms", f.Engine.Step)
	}
	if f.BlockTokens != cfg.Cache.BlockSize || f.CacheBlocks != cfg.Cache.Capacity {
		t.Errorf("cache of %d blocks of %d tokens", f.CacheBlocks, f.BlockTokens)
	}
}
