package scrape

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Bounds of a page.
const (
	maxPage = 4 << 20
	maxLine = 64 << 10
)

// Engine is what an engine says of itself.
type Engine struct {
	Running, Waiting float64 // requests
	KVUse            float64 // share of the KV memory in use, 0 to 1; -1 when it does not say
}

// Parse reads the metrics of an engine out of its page, whose lines are put in buffer
// as long as they fit; nil makes one. A page without them is an error: it is not an
// engine's.
func Parse(page io.Reader, buffer []byte) (Engine, error) {
	e := Engine{KVUse: -1}
	found := false
	lines := bufio.NewScanner(io.LimitReader(page, maxPage))
	lines.Buffer(buffer, maxLine)
	for lines.Scan() {
		name, value, ok := sample(lines.Bytes())
		if !ok {
			continue
		}
		switch name { // with several models or ranks on a page, requests add up
		case "vllm:num_requests_running", "sglang:num_running_reqs":
			e.Running += value
			found = true
		case "vllm:num_requests_waiting", "sglang:num_queue_reqs":
			e.Waiting += value
		case "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage":
			e.KVUse = max(e.KVUse, min(1, value)) // the fullest rank holds requests up
		}
	}
	if err := lines.Err(); err != nil {
		return e, fmt.Errorf("metrics page: %w", err)
	}
	if !found {
		return e, errors.New("metrics page: it has neither vllm:num_requests_running nor sglang:num_running_reqs")
	}
	return e, nil
}

// series are the names that are read. A page has hundreds of others, which are told
// by their first letters.
var series = [...]string{ //nolint:gochecknoglobals // an immutable table
	"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
	"sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage",
}

// sample takes a line of the text format apart, if it is one of a series that is read.
func sample(line []byte) (name string, value float64, ok bool) {
	for _, s := range series {
		if len(line) > len(s) && string(line[:len(s)]) == s && (line[len(s)] == '{' || line[len(s)] == ' ') {
			name = s
			break
		}
	}
	if name == "" {
		return "", 0, false
	}
	rest := line[len(name):]
	if end := bytes.LastIndexByte(rest, '}'); end >= 0 {
		rest = rest[end+1:]
	}
	text, _, _ := bytes.Cut(bytes.TrimSpace(rest), []byte(" "))
	value, err := strconv.ParseFloat(string(text), 64)
	return name, value, err == nil && value >= 0 && value < 1e9
}
