package traffic

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// TraceConfig says how a trace is replayed.
type TraceConfig struct {
	Seed     uint64
	Requests int           // about so many, as whole conversations from all over the trace; 0 for all. Default 400
	Over     time.Duration // they are sent within this time; 0 keeps the trace's own clock. Default 25 s
	Shrink   int           // divides every length. Default 16
}

// DefaultTraceConfig returns the replay that matches [DefaultGenerateConfig].
func DefaultTraceConfig() TraceConfig {
	return TraceConfig{Seed: 1, Requests: 400, Over: 25 * time.Second, Shrink: 16}
}

// blockTokens is how many tokens one hash id of the Mooncake traces stands for.
const blockTokens = 512

// record is one line of a Mooncake trace.
type record struct {
	Timestamp    float64  `json:"timestamp"` // ms
	InputLength  int      `json:"input_length"`
	OutputLength int      `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
}

// ReadTrace makes a plan of a trace in the format of the Mooncake project: one
// JSON object per line with timestamp (ms), input_length, output_length and
// hash_ids. Requests whose hash_ids start alike get prompts that start alike.
//
// A sample is drawn by conversations: the first so many requests of a trace would
// have few of the later turns whose prefixes they cache. The trace says nothing
// of who waited for whom, so each request is sent at its time.
func ReadTrace(in io.Reader, cfg TraceConfig) (*Plan, error) {
	if cfg.Shrink <= 0 || cfg.Requests < 0 || cfg.Over < 0 {
		return nil, errors.New("trace: shrink must be at least 1, requests and over at least 0")
	}
	var records []record
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var rec record
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			return nil, fmt.Errorf("trace line %d: %w", n, err)
		}
		if rec.InputLength <= 0 || len(rec.HashIDs) == 0 || rec.Timestamp < 0 {
			return nil, fmt.Errorf("trace line %d: want timestamp, input_length, output_length and hash_ids", n)
		}
		records = append(records, rec)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	if len(records) == 0 {
		return nil, errors.New("trace: no requests in it")
	}
	return tracePlan(sample(records, cfg), cfg), nil
}

// sample returns whole conversations of records, in their order: at least
// cfg.Requests requests if there are so many. Requests belong together when they
// share more than the first block, which often is everyone's system prompt.
func sample(records []record, cfg TraceConfig) []record {
	if cfg.Requests == 0 || len(records) <= cfg.Requests {
		return records
	}
	members := make(map[[2]uint64][]int)
	var keys [][2]uint64 // in order of appearance
	for i, rec := range records {
		key := [2]uint64{rec.HashIDs[0], math.MaxUint64 - uint64(i)}
		if len(rec.HashIDs) > 1 {
			key[1] = rec.HashIDs[1]
		}
		if members[key] == nil {
			keys = append(keys, key)
		}
		members[key] = append(members[key], i)
	}
	r := rand.New(rand.NewPCG(cfg.Seed, 0)) //nolint:gosec // a simulation's chance
	r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	var chosen []int
	for _, key := range keys {
		if len(chosen) >= cfg.Requests {
			break
		}
		chosen = append(chosen, members[key]...)
	}
	slices.Sort(chosen)
	some := make([]record, len(chosen))
	for k, i := range chosen {
		some[k] = records[i]
	}
	return some
}

func tracePlan(records []record, cfg TraceConfig) *Plan {
	first, last := records[0].Timestamp, records[len(records)-1].Timestamp
	compress := 1.0
	if cfg.Over > 0 && last > first {
		compress = float64(cfg.Over) / ((last - first) * float64(time.Millisecond))
	}
	plan := &Plan{Conversations: make([]Conversation, len(records))}
	for i, rec := range records {
		plan.Conversations[i].Requests = []Request{{
			ID: requestID(i, 0), Conversation: i,
			Messages:  []Message{{"user", promptOf(rec, cfg)}},
			MaxTokens: max(1, rec.OutputLength/cfg.Shrink),
			Wait:      max(0, time.Duration((rec.Timestamp-first)*compress*float64(time.Millisecond))),
		}}
	}
	return plan
}

// promptOf writes the text of each block by its id alone, and cuts the last one
// to the request's length.
func promptOf(rec record, cfg TraceConfig) string {
	left := max(1, rec.InputLength/cfg.Shrink)
	block := max(1, blockTokens/cfg.Shrink)
	text := make([]byte, 0, 5*left)
	for _, id := range rec.HashIDs {
		n := min(left, block)
		r := rand.New(rand.NewPCG(cfg.Seed, id)) //nolint:gosec // text to send, not a secret
		text = appendWords(text, r, n)
		left -= n
	}
	return string(text)
}
