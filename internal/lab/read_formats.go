package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// mooncakeParser reads the lines of the traces that the Mooncake project has
// published: an id of hash_ids stands for a block of tokens and all before it.
func mooncakeParser(block int) parser {
	return func(line []byte) (row, error) {
		var rec struct {
			At     *float64 `json:"timestamp"`
			Prompt *int     `json:"input_length"`
			Output *int     `json:"output_length"`
			IDs    []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(line, &rec); err != nil {
			return row{}, fmt.Errorf("no JSON object of a trace: %w", err)
		}
		switch {
		case rec.At == nil:
			return row{}, missing("timestamp")
		case rec.Prompt == nil:
			return row{}, missing("input_length")
		case rec.Output == nil:
			return row{}, missing("output_length")
		case rec.IDs == nil:
			return row{}, missing("hash_ids")
		case !(*rec.At >= 0 && *rec.At < 1e13):
			return row{}, fmt.Errorf("timestamp %g: want milliseconds from 0 on", *rec.At)
		case len(rec.IDs) < *rec.Prompt/block:
			return row{}, fmt.Errorf("%d hash_ids for %d tokens: want one for each %d tokens (--block-tokens)", len(rec.IDs), *rec.Prompt, block)
		}
		return row{
			at:     time.Duration(*rec.At * float64(time.Millisecond)),
			prompt: *rec.Prompt, output: *rec.Output, ids: rec.IDs,
		}, nil
	}
}

func missing(field string) error { return fmt.Errorf("%s is missing", field) }

// azureTime is how the Azure traces write a time.
const azureTime = "2006-01-02 15:04:05.9999999"

// azureParser reads the CSV of the Azure LLM inference traces, which tell nothing of
// what prompts share.
func azureParser() parser {
	first := true
	return func(line []byte) (row, error) {
		head := first
		first = false
		fields := bytes.Split(line, []byte(","))
		if head && bytes.HasPrefix(bytes.TrimPrefix(line, []byte("\xef\xbb\xbf")), []byte("TIMESTAMP")) {
			return row{}, errSkip
		}
		if len(fields) != 3 {
			return row{}, fmt.Errorf("%d fields: want TIMESTAMP,ContextTokens,GeneratedTokens", len(fields))
		}
		at, err := time.Parse(azureTime, string(bytes.TrimSpace(fields[0])))
		if err != nil {
			return row{}, fmt.Errorf("TIMESTAMP %.40q: want it like %q", fields[0], azureTime)
		}
		prompt, err := strconv.Atoi(string(bytes.TrimSpace(fields[1])))
		if err != nil {
			return row{}, fmt.Errorf("ContextTokens %.40q: want a number", fields[1])
		}
		output, err := strconv.Atoi(string(bytes.TrimSpace(fields[2])))
		if err != nil {
			return row{}, fmt.Errorf("GeneratedTokens %.40q: want a number", fields[2])
		}
		return row{at: time.Duration(at.UnixNano()), prompt: prompt, output: output}, nil
	}
}

// errLine is a line that has begun like a log's.
var errLine = errors.New("no line of a log: want key=value pairs or a JSON object")
