package traffic

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

const threeLines = `{"timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]}
{"timestamp": 2000, "input_length": 1200, "output_length": 3, "hash_ids": [0, 1, 3]}

{"timestamp": 4000, "input_length": 500, "output_length": 160, "hash_ids": [4]}
`

func TestATracesSharedBlocksBecomeSharedText(t *testing.T) {
	cfg := DefaultTraceConfig()
	cfg.Over = time.Second
	plan, err := ReadTrace(strings.NewReader(threeLines), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Len() != 3 {
		t.Fatalf("%d requests, want 3", plan.Len())
	}
	var texts []string
	for i, want := range []struct {
		words, output int
		wait          time.Duration
	}{{1100 / 16, 3, 0}, {1200 / 16, 1, 500 * time.Millisecond}, {500 / 16, 10, time.Second}} {
		r := plan.Conversations[i].Requests[0]
		texts = append(texts, r.Messages[0].Content)
		if got := len(strings.Fields(texts[i])); got != want.words || r.MaxTokens != want.output || r.Wait != want.wait {
			t.Errorf("request %d: %d words, %d tokens out, after %v; want %+v", i, got, r.MaxTokens, r.Wait, want)
		}
	}
	shared := 2 * 512 / 16 * 5 // two blocks of words of five bytes
	if texts[0][:shared] != texts[1][:shared] || texts[0][:shared+5] == texts[1][:shared+5] {
		t.Error("the first two prompts must share exactly two blocks")
	}
	if texts[0][:5] == texts[2][:5] {
		t.Error("the third prompt must share nothing")
	}
}

func TestATraceKeepsItsOwnClockWhenNotTold(t *testing.T) {
	plan, err := ReadTrace(strings.NewReader(threeLines), TraceConfig{Shrink: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got := plan.Conversations[1].Requests[0].Wait; plan.Len() != 3 || got != 2*time.Second {
		t.Errorf("%d requests, the second after %v; want 3, after 2s", plan.Len(), got)
	}
}

func TestASampleOfATraceKeepsConversationsWhole(t *testing.T) {
	var trace strings.Builder
	for turn := range 3 { // 40 conversations of three turns, interleaved
		for talk := range 40 {
			fmt.Fprintf(&trace, `{"timestamp":%d,"input_length":%d,"output_length":9,"hash_ids":[0,%d`, 1000*turn+talk, 1024+512*turn, 1+talk)
			for k := range turn {
				fmt.Fprintf(&trace, ",%d", 100+10*talk+k)
			}
			trace.WriteString("]}\n")
		}
	}
	cfg := DefaultTraceConfig()
	cfg.Requests = 30
	plan, err := ReadTrace(strings.NewReader(trace.String()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	turns := map[string]int{} // by the text of the first two blocks
	last := time.Duration(0)
	for _, c := range plan.Conversations {
		turns[c.Requests[0].Messages[0].Content[:2*512/16*5]]++
		if c.Requests[0].Wait < last {
			t.Errorf("%s is sent before the one before it", c.Requests[0].ID)
		}
		last = c.Requests[0].Wait
	}
	if plan.Len() != 30 || len(turns) != 10 {
		t.Errorf("%d requests of %d conversations, want 30 of 10", plan.Len(), len(turns))
	}
	for _, n := range turns {
		if n != 3 {
			t.Errorf("a conversation has %d of its 3 turns", n)
		}
	}
}

func TestABadTraceIsRefusedWithItsLine(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"no JSON", threeLines + "{", "line 5"},
		{"no hashes", `{"timestamp":0,"input_length":5,"output_length":1}`, "hash_ids"},
		{"empty", "\n", "no requests"},
	} {
		_, err := ReadTrace(strings.NewReader(tt.text), TraceConfig{Shrink: 1})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want it to say %q", tt.name, err, tt.want)
		}
	}
}

func TestTheRealTrace(t *testing.T) {
	file, err := os.Open("../../../shared/traces/mooncake_conversation_trace.jsonl")
	if err != nil {
		t.Skip("no trace file beside the checkout")
	}
	defer file.Close()
	plan, err := ReadTrace(file, TraceConfig{Shrink: 64})
	if err != nil {
		t.Fatal(err)
	}
	c := NewCeiling(8)
	for i := range plan.Conversations {
		c.Add(asTokens(plan.Conversations[i].Requests[0].Messages)[1:]) // without the template's token
	}
	if got := c.Ratio(); plan.Len() != 12031 || got < .34 || got > .39 {
		t.Errorf("%d requests with a ceiling of %.3f, want 12031 and .366 of blocks", plan.Len(), got)
	}
}
