package prompt

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
)

func TestRetentionIsTheStrongestHint(t *testing.T) {
	block := func(typ, cc string) string {
		return `{"type":"` + typ + `","text":"x","cache_control":` + cc + `}`
	}
	for name, tt := range map[string]struct {
		keys string
		want Retention
	}{
		"none":                        {`"x":1`, RetentionUnset},
		"24h":                         {`"prompt_cache_retention":"24h"`, RetentionLong},
		"1h in capitals and spaces":   {`"prompt_cache_retention":" 1H "`, RetentionLong},
		"long":                        {`"prompt_cache_retention":"long"`, RetentionLong},
		"5m":                          {`"prompt_cache_retention":"5m"`, RetentionShort},
		"short":                       {`"prompt_cache_retention":"short"`, RetentionShort},
		"off":                         {`"prompt_cache_retention":"off"`, RetentionNone},
		"disabled":                    {`"prompt_cache_retention":"disabled"`, RetentionNone},
		"an unknown word":             {`"prompt_cache_retention":"fortnight"`, RetentionUnset},
		"not a string":                {`"prompt_cache_retention":24`, RetentionUnset},
		"a key alone":                 {`"prompt_cache_key":"k"`, RetentionShort},
		"an empty key":                {`"prompt_cache_key":""`, RetentionUnset},
		"a null key":                  {`"prompt_cache_key":null`, RetentionUnset},
		"a key and off":               {`"prompt_cache_key":"k","prompt_cache_retention":"off"`, RetentionNone},
		"a key and an unknown word":   {`"prompt_cache_key":"k","prompt_cache_retention":"fortnight"`, RetentionUnset},
		"a key and a null retention":  {`"prompt_cache_retention":null,"prompt_cache_key":"k"`, RetentionShort},
		"ephemeral message block":     {`"messages":[{"role":"user","content":[` + block("text", `{"type":"ephemeral"}`) + `]}]`, RetentionShort},
		"ephemeral for an hour":       {`"messages":[{"role":"user","content":[` + block("text", `{"ttl":"1h","type":"ephemeral"}`) + `]}]`, RetentionLong},
		"3600s":                       {`"messages":[{"role":"user","content":[` + block("text", `{"type":"ephemeral","ttl":"3600S"}`) + `]}]`, RetentionLong},
		"an unknown ttl is short":     {`"messages":[{"role":"user","content":[` + block("text", `{"type":"ephemeral","ttl":"9y"}`) + `]}]`, RetentionShort},
		"an unknown type is nothing":  {`"messages":[{"role":"user","content":[` + block("text", `{"type":"eternal","ttl":"1h"}`) + `]}]`, RetentionUnset},
		"cache_control not an object": {`"messages":[{"role":"user","content":[` + block("text", `true`) + `]}]`, RetentionUnset},
		"a thinking block is none":    {`"messages":[{"role":"user","content":[` + block("thinking", `{"type":"ephemeral","ttl":"1h"}`) + `]}]`, RetentionNone},
		"the strongest of several": {
			`"messages":[{"role":"user","content":[` + block("text", `{"type":"ephemeral"}`) + `,` + block("text", `{"type":"ephemeral","ttl":"1h"}`) + `,` + block("thinking", `{"type":"ephemeral"}`) + `]}]`, RetentionLong,
		},
		"system block":             {`"system":[` + block("text", `{"type":"ephemeral","ttl":"60m"}`) + `]`, RetentionLong},
		"tool":                     {`"tools":[{"name":"a"},7,{"name":"b","cache_control":{"type":"ephemeral"}}]`, RetentionShort},
		"inside a tool result: no": {`"messages":[{"role":"user","content":[{"type":"tool_result","content":[` + block("text", `{"type":"ephemeral"}`) + `]}]}]`, RetentionUnset},
		"both spellings":           {`"prompt_cache_retention":"5m","system":[` + block("text", `{"type":"ephemeral","ttl":"1h"}`) + `]`, RetentionLong},
	} {
		t.Run(name, func(t *testing.T) {
			for _, kind := range []Kind{Chat, Messages} {
				if got := mustScan(t, kind, `{"model":"m",`+tt.keys+`}`).Retention; got != tt.want {
					t.Errorf("%v: %v, want %v", kind, got, tt.want)
				}
			}
		})
	}
}

func TestMultimodalContentAndImageKeys(t *testing.T) {
	keys := func(refs ...string) (out []uint64) {
		for _, ref := range refs {
			out = append(out, xxh3.HashString(ref))
		}
		return out
	}
	for name, tt := range map[string]struct {
		part string
		mm   bool
		keys []uint64
	}{
		"text":                  {`{"type":"text","text":"x"}`, false, nil},
		"image url object":      {`{"type":"image_url","image_url":{"detail":"low","url":"u1"}}`, true, keys("u1")},
		"image url string":      {`{"type":"image_url","image_url":"u1"}`, true, keys("u1")},
		"image url with spaces": {`{"type":"image_url","image_url":" \nu1\t"}`, true, keys("u1")},
		"image url escaped":     {`{"type":"image_url","image_url":"https:\/\/a\/\u00e9"}`, true, keys("https://a/é")},
		"input audio":           {`{"type":"input_audio","input_audio":{"data":"QUJD","format":"wav"}}`, true, keys("QUJD")},
		"source url":            {`{"type":"image","source":{"type":"url","url":"u2"}}`, true, keys("u2")},
		"source data":           {`{"type":"document","source":{"type":"base64","data":"ZZ"}}`, true, keys("ZZ")},
		"source prefers url":    {`{"type":"image","source":{"data":"ZZ","url":"u2"}}`, true, keys("u2")},
		"plain url":             {`{"type":"video","url":"u3"}`, true, keys("u3")},
		"plain data":            {`{"type":"audio","data":"d"}`, true, keys("d")},
		"order of precedence":   {`{"type":"image","data":"d","url":"u3","source":{"url":"u2"},"image_url":"u1"}`, true, keys("u1")},
		"no reference":          {`{"type":"file","file":{"file_id":"f"}}`, true, nil},
		"empty reference":       {`{"type":"image_url","image_url":"  "}`, true, nil},
		"video url of vLLM":     {`{"type":"video_url","video_url":{"url":"v"}}`, true, keys("v")},
		"unknown type with url": {`{"type":"link","url":"u"}`, false, keys("u")},
		"in a tool result":      {`{"type":"tool_result","content":[{"type":"image","source":{"data":"ZZ"}}]}`, true, keys("ZZ")},
		"the last member wins":  {`{"type":"text","type":"image","url":"a","url":"b"}`, true, keys("b")},
	} {
		t.Run(name, func(t *testing.T) {
			r := mustScan(t, Chat, `{"model":"m","messages":[{"role":"user","content":[`+tt.part+`]}]}`)
			if r.Multimodal != tt.mm || !slices.Equal(r.Images, tt.keys) {
				t.Errorf("multimodal %v, keys %x; want %v, %x", r.Multimodal, r.Images, tt.mm, tt.keys)
			}
			r = mustScan(t, Messages, `{"model":"m","system":[`+tt.part+`]}`)
			if r.Multimodal != tt.mm || !slices.Equal(r.Images, tt.keys) {
				t.Errorf("in system: multimodal %v, keys %x; want %v, %x", r.Multimodal, r.Images, tt.mm, tt.keys)
			}
		})
	}
	for keys, want := range map[string]bool{
		`"images":["a",{"url":"b"},7]`: true, `"images":[]`: false, `"images":"a"`: false,
		`"audio":{"voice":"x"}`: true, `"audio":{ }`: false, `"audio":null`: false, `"audio":[1]`: true, `"audio":"x"`: false,
	} {
		if got := mustScan(t, Chat, `{"model":"m",`+keys+`}`).Multimodal; got != want {
			t.Errorf("%s: multimodal %v", keys, got)
		}
	}
}

func TestImageKeysAreBounded(t *testing.T) {
	var body strings.Builder
	body.WriteString(`{"model":"m","images":[""`)
	for i := range 1000 {
		fmt.Fprintf(&body, `,"u%d"`, i)
	}
	if r := mustScan(t, Chat, body.String()+`]}`); len(r.Images) != MaxImages {
		t.Errorf("%d keys", len(r.Images))
	}
}
