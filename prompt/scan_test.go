package prompt

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"
)

func mustScan(t *testing.T, kind Kind, body string) *Request {
	t.Helper()
	var r Request
	if err := r.Scan(kind, nil, []byte(body)); err != nil {
		t.Fatalf("Scan(%s) = %v", body, err)
	}
	return &r
}

func TestKindOfToleratesPrefixesQueriesAndSlashes(t *testing.T) {
	for path, want := range map[string]Kind{
		"/v1/chat/completions":               Chat,
		"/v1/chat/completions/":              Chat,
		"/v1/chat/completions?api-version=1": Chat,
		"/chat/completions?":                 Chat,
		"/openai/v1/chat/completions":        Chat,
		"http://host/v1/chat/completions":    Chat,
		"/v1/completions":                    Completions,
		"/v1/completions//":                  Completions,
		"/completions":                       Completions,
		"/v1/messages":                       Messages,
		"/anthropic/v1/messages?beta=true":   Messages,
		"/messages":                          Messages,
		"/v1/messages/count_tokens":          Other,
		"/v1/threads/t1/messages":            Other,
		"/v1/chat/completionsx":              Other,
		"/v1/xcompletions":                   Other,
		"/v1/embeddings":                     Other,
		"/v1/models":                         Other,
		"/":                                  Other,
		"":                                   Other,
	} {
		if got := KindOf(path); got != want {
			t.Errorf("KindOf(%q) = %v, want %v", path, got, want)
		}
	}
}

func TestScanReadsTheRoutingKeys(t *testing.T) {
	r := mustScan(t, Chat, ` {
		"model" : "Qwen\/Qwen3-0.6B", "stream":true, "n": 2, "best_of": 3.0, "max_tokens": 10,
		"max_completion_tokens": 20, "cache_salt":"s\u00e9", "lora_path":"ada", "Model":"other", "STREAM":false,
		"temperature": -1.5e+3, "nested": [[], {}, {"a":[1,2,{"b":null}]}, true, false, null, "x"],
		"messages": [{"role":"user","content":"hi"}], "tools": [{"type":"function"}]
	} `)
	if r.Model != "Qwen/Qwen3-0.6B" || !r.Stream || r.N != 2 || r.BestOf != 3 || r.MaxTokens != 20 ||
		r.CacheSalt != "sé" || r.LoRA != "ada" || !r.Tools || r.Multimodal || r.LoneSurrogates || r.Kind != Chat {
		t.Errorf("Scan: %+v", r)
	}
	if got := string(r.Raw("tools")); got != `[{"type":"function"}]` {
		t.Errorf("Raw(tools) = %s", got)
	}
	if r.Raw("temperature") != nil || r.Raw("prompt") != nil || r.Set("prompt") || !r.Set("tools") {
		t.Error("Raw and Set of keys that are not there")
	}
}

func TestScanOfAnEmptyRequestHasTheDefaults(t *testing.T) {
	r := mustScan(t, Chat, `{"model":"m","stream":null,"n":null,"max_tokens":null,"messages":null,"tools":null,"lora_path":null,"cache_salt":null}`)
	if r.Stream || r.N != 1 || r.BestOf != 0 || r.MaxTokens != 0 || r.Tools || r.LoRA != "" || r.Retention != RetentionUnset {
		t.Errorf("Scan: %+v", r)
	}
}

func TestKeysWithEscapesAreTheKeysTheEngineSees(t *testing.T) {
	r := mustScan(t, Chat, `{"mod\u0065l":"a","m\u0065ssages":[{"r\u006fle":"user","\u0063ontent":[{"\u0074ype":"\u0074ext","te\u0078t":"x"}]}]}`)
	if r.Model != "a" {
		t.Errorf("Model = %q", r.Model)
	}
	for m := range r.Messages() {
		if !m.Role.Is("user") || len(m.Parts) != 1 || m.Parts[0].Kind != PartText || m.Parts[0].Text.String() != "x" {
			t.Errorf("message = %+v", m)
		}
	}
	wantBad(t, Chat, `{"model":"a","mod\u0065l":"b"}`, CodeDuplicateKey, "model")
}

func TestMessagesAreViewsOfTheBody(t *testing.T) {
	r := mustScan(t, Chat, `{"model":"m","messages":[
		{"role":"system","content":"be \"good\"\n\u4e2d\ud83d\ude00"},
		{"content":[{"type":"text","text":"a"},"b",{"type":"image_url","image_url":{"url":" https://cdn/cat.png "}},{"type":"refusal","refusal":"no"}],"role":"user"},
		{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},
		{"role":"x","content":["old","older"],"content":"text","content":["new"]},
		{}
	]}`)
	var got []Message
	for m := range r.Messages() {
		got = append(got, m)
	}
	if len(got) != 5 {
		t.Fatalf("%d messages", len(got))
	}
	if s := got[0].Content.String(); !got[0].IsText || s != "be \"good\"\n中😀" {
		t.Errorf("content 0 = %q", s)
	}
	if !got[0].Content.Escaped() || got[0].Role.Escaped() || string(got[0].Role.Raw()) != "system" {
		t.Error("the views of message 0 do not say what is escaped")
	}
	p := got[1].Parts
	if len(p) != 4 || p[0].Text.String() != "a" || p[1].Text.String() != "b" || p[1].Kind != PartText ||
		p[2].Kind != PartMedia || p[2].Key != 0x1f5bb4d6cb990f7e || p[3].Kind != PartOther || string(p[3].Raw) != `{"type":"refusal","refusal":"no"}` {
		t.Errorf("parts 1 = %+v", p)
	}
	if string(got[2].ToolCalls) != `[{"id":"1"}]` || got[2].IsText || got[2].Parts != nil {
		t.Errorf("message 2 = %+v", got[2])
	}
	if got[3].IsText || len(got[3].Parts) != 1 || got[3].Parts[0].Text.String() != "new" {
		t.Errorf("of two contents the last must count: %+v", got[3])
	}
	if string(got[4].Raw) != "{}" {
		t.Errorf("raw 4 = %s", got[4].Raw)
	}
	if !r.Multimodal || len(r.Images) != 1 || r.Images[0] != 0x1f5bb4d6cb990f7e {
		t.Errorf("images = %x", r.Images)
	}
	for range r.Messages() {
		break // an iterator that goes on after this would panic
	}
}

func TestSystemPromptIsOfAnthropicRequests(t *testing.T) {
	r := mustScan(t, Messages, `{"model":"m","max_tokens":5,"system":"sys","messages":[]}`)
	if m, ok := r.System(); !ok || m.Content.String() != "sys" {
		t.Errorf("System() = %+v, %v", m, ok)
	}
	r = mustScan(t, Messages, `{"model":"m","system":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"messages":[{"role":"user","content":"x"}]}`)
	if m, ok := r.System(); !ok || len(m.Parts) != 2 {
		t.Errorf("System() = %+v, %v", m, ok)
	}
	r = mustScan(t, Messages, `{"model":"m","system":null}`)
	if _, ok := r.System(); ok {
		t.Error("null is no system prompt")
	}
	r = mustScan(t, Chat, `{"model":"m","system":"sys"}`)
	if _, ok := r.System(); ok {
		t.Error("an OpenAI request has no system key")
	}
}

func TestPromptForms(t *testing.T) {
	for body, want := range map[string]struct {
		text    string
		isText  bool
		ids     []uint32
		isIDs   bool
		prompts int
	}{
		`"a\tb"`:              {"a\tb", true, nil, false, 1},
		`["a","b","c"]`:       {"a", true, nil, false, 3},
		`[1, 20 ,4294967295]`: {"", false, []uint32{1, 20, 4294967295}, true, 1},
		`[[1,2],[3],[]]`:      {"", false, []uint32{1, 2}, true, 3},
		`[[]]`:                {"", false, nil, true, 1},
		`[]`:                  {"", false, nil, false, 0},
		`null`:                {"", false, nil, false, 0},
	} {
		r := mustScan(t, Completions, `{"model":"m","prompt":`+body+`}`)
		text, isText := r.Prompt()
		ids, isIDs := r.PromptIDs(nil)
		if text.String() != want.text || isText != want.isText || isIDs != want.isIDs || r.Prompts() != want.prompts || !equalIDs(ids, want.ids) {
			t.Errorf("%s: text %q %v, ids %v %v, %d prompts", body, text, isText, ids, isIDs, r.Prompts())
		}
	}
}

func equalIDs(a, b []uint32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func wantBad(t *testing.T, kind Kind, body, code, param string) {
	t.Helper()
	var r Request
	err := r.Scan(kind, nil, []byte(body))
	var bad *BadRequest
	if len(body) > 200 {
		body = body[:200] + "..."
	}
	if !errors.As(err, &bad) {
		t.Errorf("Scan(%s) = %v, want a BadRequest", body, err)
		return
	}
	if bad.Status != http.StatusBadRequest || bad.Code != code || bad.Param != param || bad.Message == "" {
		t.Errorf("Scan(%s) = %d %s param %q: %s; want 400 %s param %q", body, bad.Status, bad.Code, bad.Param, bad.Message, code, param)
	}
}

func TestBadBodiesGetA400ThatSaysWhatAndWhere(t *testing.T) {
	deep := func(n int) string {
		return `{"model":"m","x":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `}`
	}
	for name, tt := range map[string]struct {
		kind        Kind
		body        string
		code, param string
	}{
		"empty body":                       {Chat, ``, CodeInvalidJSON, ""},
		"only white space":                 {Chat, " \n", CodeInvalidJSON, ""},
		"not JSON":                         {Chat, `hello`, CodeInvalidJSON, ""},
		"an array":                         {Chat, `[]`, CodeInvalidJSON, ""},
		"a string":                         {Chat, `"model"`, CodeInvalidJSON, ""},
		"null":                             {Chat, `null`, CodeInvalidJSON, ""},
		"truncated":                        {Chat, `{"model":"m"`, CodeInvalidJSON, ""},
		"truncated in a string":            {Chat, `{"model":"m`, CodeInvalidJSON, ""},
		"truncated in an escape":           {Chat, `{"model":"m\`, CodeInvalidJSON, ""},
		"truncated in a unicode escape":    {Chat, `{"model":"m\u00`, CodeInvalidJSON, ""},
		"truncated in messages":            {Chat, `{"model":"m","messages":[{"role":"user"`, CodeInvalidJSON, ""},
		"trailing comma in object":         {Chat, `{"model":"m",}`, CodeInvalidJSON, ""},
		"trailing comma in array":          {Chat, `{"model":"m","x":[1,]}`, CodeInvalidJSON, ""},
		"trailing comma in messages":       {Chat, `{"model":"m","messages":[{},]}`, CodeInvalidJSON, ""},
		"leading comma":                    {Chat, `{,"model":"m"}`, CodeInvalidJSON, ""},
		"missing colon":                    {Chat, `{"model" "m"}`, CodeInvalidJSON, ""},
		"unquoted key":                     {Chat, `{model:"m"}`, CodeInvalidJSON, ""},
		"mixed brackets":                   {Chat, `{"model":"m","x":[}]}`, CodeInvalidJSON, ""},
		"single quotes":                    {Chat, `{'model':'m'}`, CodeInvalidJSON, ""},
		"bad literal":                      {Chat, `{"model":"m","x":nul}`, CodeInvalidJSON, ""},
		"NaN":                              {Chat, `{"model":"m","x":NaN}`, CodeInvalidJSON, ""},
		"leading zero":                     {Chat, `{"model":"m","x":01}`, CodeInvalidJSON, ""},
		"bare minus":                       {Chat, `{"model":"m","x":-}`, CodeInvalidJSON, ""},
		"dot without digits":               {Chat, `{"model":"m","x":1.}`, CodeInvalidJSON, ""},
		"exponent without digits":          {Chat, `{"model":"m","x":1e}`, CodeInvalidJSON, ""},
		"plus sign":                        {Chat, `{"model":"m","x":+1}`, CodeInvalidJSON, ""},
		"double comma":                     {Chat, `{"model":"m","x":[1,,2]}`, CodeInvalidJSON, ""},
		"unknown escape":                   {Chat, `{"model":"m","x":"\q"}`, CodeInvalidJSON, ""},
		"bad hex digits":                   {Chat, `{"model":"m","x":"\u12g4"}`, CodeInvalidJSON, ""},
		"raw newline in a string":          {Chat, "{\"model\":\"m\",\"x\":\"a\nb\"}", CodeInvalidJSON, ""},
		"NUL in a string":                  {Chat, "{\"model\":\"m\",\"x\":\"a\x00b\"}", CodeInvalidJSON, ""},
		"NUL between tokens":               {Chat, "{\"model\":\"m\"\x00}", CodeInvalidJSON, ""},
		"two objects":                      {Chat, `{"model":"m"}{"model":"m"}`, CodeInvalidJSON, ""},
		"a zero after the object":          {Chat, `{"model":"m"}0`, CodeInvalidJSON, ""},
		"invalid UTF-8":                    {Chat, "{\"model\":\"m\",\"x\":\"a\xffb\"}", CodeInvalidJSON, ""},
		"overlong UTF-8":                   {Chat, "{\"model\":\"m\",\"x\":\"\xc0\xaf\"}", CodeInvalidJSON, ""},
		"surrogate in UTF-8":               {Chat, "{\"model\":\"m\",\"x\":\"\xed\xa0\x80\"}", CodeInvalidJSON, ""},
		"cut UTF-8":                        {Chat, "{\"model\":\"m\",\"x\":\"\xe4\xb8\"}", CodeInvalidJSON, ""},
		"byte order mark":                  {Chat, "\xef\xbb\xbf{\"model\":\"m\"}", CodeInvalidJSON, ""},
		"invalid UTF-8 in a key":           {Chat, "{\"model\":\"m\",\"\xff\":1}", CodeInvalidJSON, ""},
		"duplicate model":                  {Chat, `{"model":"a","model":"b"}`, CodeDuplicateKey, "model"},
		"duplicate model with equal value": {Chat, `{"model":"a","x":1,"model":"a"}`, CodeDuplicateKey, "model"},
		"duplicate messages":               {Chat, `{"model":"a","messages":[],"messages":[]}`, CodeDuplicateKey, "messages"},
		"duplicate stream":                 {Chat, `{"model":"a","stream":true,"stream":false}`, CodeDuplicateKey, "stream"},
		"duplicate prompt":                 {Completions, `{"model":"a","prompt":"x","prompt":"y"}`, CodeDuplicateKey, "prompt"},
		"duplicate n":                      {Chat, `{"model":"a","n":1,"n":1}`, CodeDuplicateKey, "n"},
		"63 levels":                        {Chat, deep(63), CodeTooDeep, ""},
		"64 levels":                        {Chat, deep(64), CodeTooDeep, ""},
		"64 levels of objects":             {Chat, `{"model":"m","x":` + strings.Repeat(`{"a":`, 63) + `1` + strings.Repeat("}", 63) + `}`, CodeTooDeep, ""},
		"64 levels in a message":           {Chat, `{"messages":[{"role":"user","x":` + strings.Repeat("[", 61), CodeTooDeep, ""},
		"a million levels":                 {Chat, `{"x":` + strings.Repeat("[", 1_000_000), CodeTooDeep, ""},
		"a million levels at the root":     {Chat, strings.Repeat("[", 1_000_000), CodeTooDeep, ""},
		"no model":                         {Chat, `{"messages":[]}`, CodeNoModel, "model"},
		"no model in completions":          {Completions, `{}`, CodeNoModel, "model"},
		"no model in messages":             {Messages, `{"Model":"m"}`, CodeNoModel, "model"},
		"empty model":                      {Chat, `{"model":""}`, CodeNoModel, "model"},
		"model is a number":                {Chat, `{"model":1}`, CodeWrongType, "model"},
		"model is null":                    {Chat, `{"model":null}`, CodeWrongType, "model"},
		"model is a list":                  {Chat, `{"model":["a"]}`, CodeWrongType, "model"},
		"model with half a surrogate":      {Chat, `{"model":"a\ud800"}`, CodeInvalidValue, "model"},
		"stream is a string":               {Chat, `{"model":"m","stream":"true"}`, CodeWrongType, "stream"},
		"stream is a number":               {Chat, `{"model":"m","stream":1}`, CodeWrongType, "stream"},
		"n is zero":                        {Chat, `{"model":"m","n":0}`, CodeInvalidValue, "n"},
		"n is negative":                    {Chat, `{"model":"m","n":-1}`, CodeInvalidValue, "n"},
		"n is a fraction":                  {Chat, `{"model":"m","n":1.5}`, CodeWrongType, "n"},
		"n is a string":                    {Chat, `{"model":"m","n":"1"}`, CodeWrongType, "n"},
		"n is far too big":                 {Chat, `{"model":"m","n":99999999999999999999}`, CodeWrongType, "n"},
		"n is infinite":                    {Chat, `{"model":"m","n":1e999}`, CodeWrongType, "n"},
		"max_tokens is negative":           {Chat, `{"model":"m","max_tokens":-5}`, CodeInvalidValue, "max_tokens"},
		"max_tokens is a boolean":          {Chat, `{"model":"m","max_tokens":true}`, CodeWrongType, "max_tokens"},
		"messages is a string":             {Chat, `{"model":"m","messages":"hi"}`, CodeWrongType, "messages"},
		"messages is an object":            {Chat, `{"model":"m","messages":{}}`, CodeWrongType, "messages"},
		"a message is a string":            {Chat, `{"model":"m","messages":[{},"hi"]}`, CodeWrongType, "messages[1]"},
		"content is a number":              {Chat, `{"model":"m","messages":[{},{"content":1}]}`, CodeWrongType, "messages[1].content"},
		"content is an object":             {Chat, `{"model":"m","messages":[{"content":{}}]}`, CodeWrongType, "messages[0].content"},
		"a part is a number":               {Chat, `{"model":"m","messages":[{"content":[1]}]}`, CodeWrongType, "messages[0].content"},
		"role is a number":                 {Chat, `{"model":"m","messages":[{"role":1}]}`, CodeWrongType, "messages[0].role"},
		"tools is an object":               {Chat, `{"model":"m","tools":{}}`, CodeWrongType, "tools"},
		"system is a number":               {Messages, `{"model":"m","system":1}`, CodeWrongType, "system"},
		"prompt is an object":              {Completions, `{"model":"m","prompt":{}}`, CodeWrongType, "prompt"},
		"prompt is a number":               {Completions, `{"model":"m","prompt":1}`, CodeWrongType, "prompt"},
		"prompt of mixed types":            {Completions, `{"model":"m","prompt":["a",1]}`, CodeWrongType, "prompt[1]"},
		"prompt of ids and text":           {Completions, `{"model":"m","prompt":[1,"a"]}`, CodeWrongType, "prompt"},
		"prompt of booleans":               {Completions, `{"model":"m","prompt":[true]}`, CodeWrongType, "prompt[0]"},
		"negative token id":                {Completions, `{"model":"m","prompt":[-1]}`, CodeInvalidValue, "prompt"},
		"fractional token id":              {Completions, `{"model":"m","prompt":[1.0]}`, CodeInvalidValue, "prompt"},
		"token id with a leading zero":     {Completions, `{"model":"m","prompt":[01]}`, CodeInvalidValue, "prompt"},
		"token id over 32 bits":            {Completions, `{"model":"m","prompt":[4294967296]}`, CodeInvalidValue, "prompt"},
		"cache_salt is a number":           {Chat, `{"model":"m","cache_salt":1}`, CodeWrongType, "cache_salt"},
		"lora_path is an object":           {Chat, `{"model":"m","lora_path":{}}`, CodeWrongType, "lora_path"},
	} {
		t.Run(name, func(t *testing.T) { wantBad(t, tt.kind, tt.body, tt.code, tt.param) })
	}
}

func TestSixtyTwoLevelsPass(t *testing.T) {
	mustScan(t, Chat, `{"model":"m","x":`+strings.Repeat("[", 61)+strings.Repeat("]", 61)+`}`)
	mustScan(t, Chat, `{"model":"m","x":`+strings.Repeat(`{"a":`, 60)+"[]"+strings.Repeat("}", 60)+`}`)
}

// The limit counts levels of the body, wherever the scan happens to be.
func TestTheDepthLimitIsTheSameEverywhere(t *testing.T) {
	for _, tt := range []struct {
		kind  Kind
		body  string // %s is where the nesting goes
		level int    // of what stands there
	}{
		{Chat, `{"model":"m","x":%s}`, 2},
		{Chat, `{"model":"m","documents":%s}`, 2},
		{Chat, `{"model":"m","messages":[{"x":%s}]}`, 4},
		{Chat, `{"model":"m","messages":[{"tool_calls":%s}]}`, 4},
		{Chat, `{"model":"m","messages":[{"content":[{"x":%s}]}]}`, 6},
		{Chat, `{"model":"m","messages":[{"content":[{"text":%s}]}]}`, 6},
		{Chat, `{"model":"m","messages":[{"content":[{"image_url":{"x":%s}}]}]}`, 7},
		{Chat, `{"model":"m","messages":[{"content":[{"image_url":{"url":%s}}]}]}`, 7},
		{Chat, `{"model":"m","messages":[{"content":[{"image_url":%s}]}]}`, 6},
		{Chat, `{"model":"m","messages":[{"content":[{"source":{"x":%s}}]}]}`, 7},
		{Chat, `{"model":"m","messages":[{"content":[{"source":%s}]}]}`, 6},
		{Chat, `{"model":"m","messages":[{"content":[{"cache_control":{"x":%s}}]}]}`, 7},
		{Chat, `{"model":"m","messages":[{"content":[{"cache_control":%s}]}]}`, 6},
		{Messages, `{"model":"m","messages":[{"content":[{"content":[{"x":%s}]}]}]}`, 8},
		{Messages, `{"model":"m","messages":[{"content":[{"content":[{"content":%s}]}]}]}`, 8},
		{Messages, `{"model":"m","system":[{"x":%s}]}`, 4},
		{Chat, `{"model":"m","tools":[{"x":%s}]}`, 4},
		{Chat, `{"model":"m","tools":[%s]}`, 3},
		{Chat, `{"model":"m","tools":[{"cache_control":{"x":%s}}]}`, 5},
		{Chat, `{"model":"m","images":[%s]}`, 3},
		{Chat, `{"model":"m","images":[{"x":%s}]}`, 4},
		{Chat, `{"model":"m","audio":%s}`, 2},
		{Completions, `{"model":"m","messages":%s}`, 2},
	} {
		for extra := range 2 {
			n := MaxDepth - tt.level + 1 + extra
			body := strings.Replace(tt.body, "%s", strings.Repeat("[", n)+strings.Repeat("]", n), 1)
			var r Request
			err := r.Scan(tt.kind, nil, []byte(body))
			var bad *BadRequest
			if extra == 0 && err != nil || extra == 1 && (!errors.As(err, &bad) || bad.Code != CodeTooDeep) {
				t.Errorf("%s with %d levels in all: %v", tt.body, MaxDepth+extra, err)
			}
		}
	}
}

// runeLen agrees with unicode/utf8 on every combination of lead and second byte,
// with third and fourth ones on both sides of what may follow.
func TestSequencesOfUTF8AreWellFormed(t *testing.T) {
	edges := []byte{0x00, 0x7F, 0x80, 0xBF, 0xC0, 0xFF}
	for lead := 0x80; lead <= 0xFF; lead++ {
		for second := range 0x100 {
			for _, third := range edges {
				for _, fourth := range edges {
					b := []byte{byte(lead), byte(second), third, fourth}
					r, want := utf8.DecodeRune(b)
					if r == utf8.RuneError && want == 1 {
						want = 0
					}
					if got := runeLen(b); got != want {
						t.Fatalf("runeLen(%x) = %d, want %d", b, got, want)
					}
					for n := 1; n < want; n++ {
						if got := runeLen(b[:n]); got != 0 {
							t.Fatalf("runeLen(%x) = %d, want 0", b[:n], got)
						}
					}
				}
			}
		}
	}
}

func TestTheMessageSaysWhereTheFaultIs(t *testing.T) {
	var r Request
	err := r.Scan(Chat, nil, []byte(`{"model":"m","n":"two"}`))
	var bad *BadRequest
	if !errors.As(err, &bad) || bad.Offset != 17 || !strings.Contains(bad.Message, "byte 17") || !strings.Contains(bad.Message, "a string") {
		t.Errorf("Scan = %v", err)
	}
	err = r.Scan(Chat, nil, []byte(`{"model":"m","messages":[{"content":7}]}`))
	if err == nil || !strings.HasPrefix(err.Error(), `"messages[0].content" must be`) {
		t.Errorf("Scan = %v", err)
	}
	err = r.Scan(Messages, nil, []byte(`{"model":"m","system":7}`))
	if err == nil || !strings.HasPrefix(err.Error(), `"system" must be`) {
		t.Errorf("Scan = %v", err)
	}
}

func TestEncodedBodiesGetA415(t *testing.T) {
	for enc, refused := range map[string]bool{"gzip": true, "identity": false, "": false, "identity, br": true, "Identity": false, "zstd": true} {
		var r Request
		h := http.Header{}
		h.Set("content-encoding", enc)
		err := r.Scan(Chat, h, []byte(`{"model":"m"}`))
		var bad *BadRequest
		if refused != errors.As(err, &bad) || refused && (bad.Status != http.StatusUnsupportedMediaType || bad.Code != CodeEncoding) {
			t.Errorf("Content-Encoding %q: %v", enc, err)
		}
		if err := r.Scan(Other, h, []byte("\x1f\x8b")); err != nil || r.Model != "" {
			t.Errorf("Content-Encoding %q on another path: %v", enc, err)
		}
	}
}

func TestOtherPathsAreNeverRefused(t *testing.T) {
	var r Request
	for body, model := range map[string]string{
		"": "", "--boundary\r\n": "", `{"model":"e","input":["x"]}`: "e", `{"model":"e",`: "",
		`{"model":"a","model":"b"}`: "", `{"model":3}`: "", `{"model":"e","messages":7,"n":"x","prompt":{},"tools":1}`: "e",
	} {
		if err := r.Scan(Other, nil, []byte(body)); err != nil || r.Model != model || r.N != 1 || r.Kind != Other {
			t.Errorf("Scan(%q) = %v, model %q", body, err, r.Model)
		}
	}
}

func TestLoneSurrogatesPassAndAreMarked(t *testing.T) {
	for text, lone := range map[string]bool{
		`\ud800x`: true, `\udc00`: true, `\ud800\ud800`: true, `\ud83d\ude00`: false, `\ud83d\u0041`: true, `\ud83d\n`: true, `\u0041`: false,
		`\ud83d\ude00\ude00`: true, `\ud800\\ude00`: true,
	} {
		r := mustScan(t, Chat, `{"messages":[{"role":"user","content":"`+text+`"}],"model":"m"}`)
		if r.LoneSurrogates != lone {
			t.Errorf("%s: LoneSurrogates = %v, want %v", text, r.LoneSurrogates, lone)
		}
	}
}

func TestABodyOfTinyMessagesCostsBoundedMemory(t *testing.T) {
	var r Request
	body := `{"model":"m","messages":[` + strings.Repeat("{},", 100_000) + `{}]}`
	if err := r.Scan(Chat, nil, []byte(body)); err != nil {
		t.Fatal(err)
	}
	if !r.Partial() || len(r.msgs) != maxRecords {
		t.Errorf("partial %v, %d messages recorded", r.Partial(), len(r.msgs))
	}
	body = `{"model":"m","messages":[{"content":[` + strings.Repeat(`"",`, 100_000) + `""]},{"role":"user","content":"x"}]}`
	if err := r.Scan(Chat, nil, []byte(body)); err != nil {
		t.Fatal(err)
	}
	if !r.Partial() || len(r.parts) != maxRecords || len(r.msgs) != 2 {
		t.Errorf("partial %v, %d parts, %d messages recorded", r.Partial(), len(r.parts), len(r.msgs))
	}
	r.Reset()
	if r.Partial() || r.parts != nil {
		t.Error("Reset kept the memory of an outsized body")
	}
}

func TestAReusedRequestKeepsNothingOfTheLastBody(t *testing.T) {
	var r Request
	full := `{"model":"a","stream":true,"n":2,"best_of":2,"max_tokens":3,"lora_path":"l","cache_salt":"s","prompt_cache_retention":"24h","prompt_cache_key":"k",
		"tools":[{}],"messages":[{"role":"user","content":[{"type":"image_url","image_url":"u"},{"type":"text","text":"\ud800"}]}],"system":[{"type":"text"}],"audio":{"a":1}}`
	if err := r.Scan(Chat, nil, []byte(full)); err != nil {
		t.Fatal(err)
	}
	if err := r.Scan(Completions, nil, []byte(`{"model":"b"}`)); err != nil {
		t.Fatal(err)
	}
	if r.Model != "b" || r.Stream || r.N != 1 || r.BestOf != 0 || r.MaxTokens != 0 || r.LoRA != "" || r.CacheSalt != "" || r.Retention != RetentionUnset ||
		r.Multimodal || len(r.Images) != 0 || r.Tools || r.LoneSurrogates || r.Raw("tools") != nil || len(r.msgs) != 0 || len(r.parts) != 0 {
		t.Errorf("after the second scan: %+v", r)
	}
}

func TestResetLeavesNothingOfTheLastBody(t *testing.T) {
	r := mustScan(t, Chat, `{"model":"a","lora_path":"l","cache_salt":"s","messages":[{"role":"user","content":"x"}]}`)
	r.Reset()
	if r.Model != "" || r.LoRA != "" || r.CacheSalt != "" || r.Kind != Other || r.Raw("model") != nil || r.Body() != nil {
		t.Errorf("after Reset: %+v", r)
	}
	if err := r.Scan(Chat, nil, []byte(`{"messages":[]}`)); err == nil || r.Model != "" {
		t.Errorf("a body without a model took the last one's: %q, %v", r.Model, err)
	}
}

func TestARequestInAPoolKeepsNoNamesOfAnySize(t *testing.T) {
	huge := strings.Repeat("z", 1<<20)
	var r Request
	body := `{"model":"` + huge + `","cache_salt":"` + huge + `","lora_path":"` + huge + `","messages":[{"role":"user","content":"hi"}]}`
	if err := r.Scan(Chat, nil, []byte(body)); err != nil {
		t.Fatal(err)
	}
	r.Reset()
	if n := len(r.last.model) + len(r.last.salt) + len(r.last.lora); n != 0 {
		t.Errorf("%d bytes of names are kept for the next request", n)
	}
}
