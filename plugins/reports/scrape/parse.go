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
		switch string(name) { // with several models or ranks on a page, requests add up
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

// sample takes a line of the text format apart.
func sample(line []byte) (name []byte, value float64, ok bool) {
	if !bytes.HasPrefix(line, []byte("vllm:")) && !bytes.HasPrefix(line, []byte("sglang:")) {
		return nil, 0, false
	}
	end := bytes.IndexAny(line, "{ ")
	if end < 0 || !named(line[:end]) {
		return nil, 0, false
	}
	rest := line[end:]
	if labels := bytes.LastIndexByte(rest, '}'); labels >= 0 {
		rest = rest[labels+1:]
	}
	text, _, _ := bytes.Cut(bytes.TrimSpace(rest), []byte(" "))
	value, err := strconv.ParseFloat(string(text), 64)
	return line[:end], value, err == nil && value >= 0 && value < 1e9
}

// named reports whether a name is one of those that are read: a page has hundreds of
// others, whose values need not be.
func named(name []byte) bool {
	switch string(name) {
	case "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
		"sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage":
		return true
	}
	return false
}
