package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// accessMessage is the message of the forwarder's line for each request.
const accessMessage = "request finished"

// accessParser reads the forwarder's log at level debug, as text or as JSON. A line is
// written when its request ends, so the requests are sorted by when they came. Other
// lines, and requests that had no answer, are passed over.
func accessParser() parser {
	return func(line []byte) (row, error) {
		fields, err := logFields(string(line))
		if err != nil {
			return row{}, err
		}
		if fields["msg"] != accessMessage || fields["outcome"] != "ok" {
			return row{}, errSkip
		}
		return accessRow(fields)
	}
}

// accessRow makes a request of the fields of its line.
func accessRow(fields map[string]string) (row, error) {
	ended, err := time.Parse(time.RFC3339Nano, fields["time"])
	if err != nil {
		return row{}, fmt.Errorf("time %.40q: want RFC 3339", fields["time"])
	}
	took, err := logDuration(fields["duration"])
	if err != nil {
		return row{}, fmt.Errorf("duration %.40q: %w", fields["duration"], err)
	}
	r := row{at: time.Duration(ended.Add(-took).UnixNano())}
	for _, f := range []struct {
		name string
		to   *int
	}{{"prompt_tokens", &r.prompt}, {"output_tokens", &r.output}} {
		name, to := f.name, f.to
		v, ok := fields[name]
		if !ok {
			return row{}, fmt.Errorf("%w: it is logged by forwarders that know the prompt (--router-mode auto)", missing(name))
		}
		if *to, err = strconv.Atoi(v); err != nil {
			return row{}, fmt.Errorf("%s %.40q: want a number", name, v)
		}
	}
	if prefix := fields["prefix"]; prefix != "" {
		r.ids = []uint64{}
		for word := range strings.SplitSeq(prefix, ".") {
			id, err := strconv.ParseUint(word, 16, 64)
			if err != nil {
				return row{}, fmt.Errorf("prefix %.40q: want hexadecimal numbers with dots between", word)
			}
			r.ids = append(r.ids, id)
		}
	}
	return r, nil
}

// logDuration reads a duration as slog writes it: 1.5s in text, nanoseconds in JSON.
func logDuration(s string) (time.Duration, error) {
	if ns, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.Duration(ns), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, errors.New("want one like 1.5s, or nanoseconds")
	}
	return d, nil
}

// logFields splits a line of slog's text or JSON handler. Of a key that comes twice
// the first counts.
func logFields(line string) (map[string]string, error) {
	fields := map[string]string{}
	if strings.HasPrefix(line, "{") {
		var values map[string]any
		dec := json.NewDecoder(strings.NewReader(line))
		dec.UseNumber()
		if err := dec.Decode(&values); err != nil {
			return nil, fmt.Errorf("no JSON object: %w", err)
		}
		for k, v := range values {
			switch v := v.(type) {
			case string:
				fields[k] = v
			case json.Number:
				fields[k] = v.String()
			}
		}
		return fields, nil
	}
	for rest := strings.TrimLeft(line, " "); rest != ""; rest = strings.TrimLeft(rest, " ") {
		key, after, ok := strings.Cut(rest, "=")
		if !ok || key == "" || strings.ContainsAny(key, " \"") {
			return nil, errLine
		}
		value, tail, err := logValue(after)
		if err != nil {
			return nil, err
		}
		if _, twice := fields[key]; !twice {
			fields[key] = value
		}
		rest = tail
	}
	return fields, nil
}

// logValue cuts the value off that a text line goes on with.
func logValue(s string) (value, rest string, err error) {
	if !strings.HasPrefix(s, `"`) {
		value, rest, _ = strings.Cut(s, " ")
		return value, rest, nil
	}
	quoted, err := strconv.QuotedPrefix(s)
	if err != nil {
		return "", "", errLine
	}
	if value, err = strconv.Unquote(quoted); err != nil {
		return "", "", errLine
	}
	return value, s[len(quoted):], nil
}
