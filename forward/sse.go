package forward

import (
	"bytes"
	"encoding/json"
	"strings"

	"pointsman/prompt"
)

// framer finds the ends of SSE events in a buffer that grows at its end and is
// cut at its front. Lines end in LF, CR LF or CR; a blank line ends an event
// (WHATWG HTML, "Parsing an event stream"). Each byte is looked at once.
type framer struct {
	pos  int  // first byte not looked at
	line int  // start of the current line
	cr   bool // the last byte looked at was a CR that ended a line
}

// next returns the offset behind the next complete event of buf, or -1 when
// there is none yet.
func (f *framer) next(buf []byte) int {
	for f.pos < len(buf) {
		if f.cr {
			f.cr = false
			if buf[f.pos] == '\n' { // belongs to the CR before it
				f.pos++
				f.line = f.pos
				continue
			}
		}
		end := lineEnd(buf[f.pos:])
		if end < 0 {
			f.pos = len(buf)
			return -1
		}
		end += f.pos
		blank := end == f.line
		f.cr = buf[end] == '\r'
		f.pos, f.line = end+1, end+1
		if !blank {
			continue
		}
		if f.cr && f.pos < len(buf) && buf[f.pos] == '\n' {
			f.cr = false
			f.pos++
			f.line = f.pos
		}
		return f.pos
	}
	return -1
}

// skip tells f that an event that has no CR in it ends at offset n.
func (f *framer) skip(n int) { *f = framer{pos: n, line: n} }

// cut tells f that n bytes were removed from the front of its buffer.
func (f *framer) cut(n int) {
	f.pos -= n
	f.line -= n
}

// lineEnd returns the index of the first CR or LF in b, or -1.
func lineEnd(b []byte) int {
	lf := bytes.IndexByte(b, '\n')
	if lf >= 0 {
		b = b[:lf]
	}
	if cr := bytes.IndexByte(b, '\r'); cr >= 0 {
		return cr
	}
	return lf
}

// meaning is what an event is to the relay.
type meaning uint8

const (
	content   meaning = iota // carries something of the answer, or we can't tell
	lifecycle                // carries nothing of the answer: comment, role, start, ping
	final                    // the answer is complete
	failed                   // the worker says that the answer failed
)

// dialect is which stream a path answers with, and so what completes it.
type dialect uint8

const (
	generic   dialect = iota // any: complete when the body properly ends
	chat                     // chat and completions: data: [DONE]
	messages                 // Anthropic messages: message_stop
	responses                // OpenAI responses: response.completed
)

// responsesPath is the OpenAI responses endpoint, which prompt does not score.
const responsesPath = "/v1/responses"

func dialectOf(kind prompt.Kind, path string) dialect {
	switch {
	case kind == prompt.Chat, kind == prompt.Completions:
		return chat
	case kind == prompt.Messages:
		return messages
	case isResponses(path):
		return responses
	}
	return generic
}

// isResponses reports whether path is the OpenAI responses endpoint, with any
// prefix and trailing slashes.
func isResponses(path string) bool {
	return strings.HasSuffix(strings.TrimRight(path, "/"), responsesPath)
}

// shape returns the form of the errors in a stream of dialect d.
func (d dialect) shape() shape {
	switch d {
	case messages:
		return anthropic
	case responses:
		return responseEvent
	case generic, chat:
	}
	return openAI
}

const (
	bom      = "\xef\xbb\xbf"
	doneData = "[DONE]"

	doneEvent = "data: " + doneData + "\n\n"
)

// event is the parts of an SSE event that the relay looks at: the event field
// and the first data line.
type event struct {
	name, data []byte
	hasData    bool
}

func parseEvent(raw []byte) event {
	var ev event
	raw = bytes.TrimPrefix(raw, []byte(bom))
	for len(raw) > 0 {
		end := lineEnd(raw)
		if end < 0 {
			end = len(raw)
		}
		line := raw[:end]
		raw = raw[min(end+1, len(raw)):]
		switch {
		case !ev.hasData && bytes.HasPrefix(line, []byte("data:")):
			ev.hasData = true
			ev.data = bytes.TrimSpace(line[len("data:"):])
		case bytes.HasPrefix(line, []byte("event:")):
			ev.name = bytes.TrimSpace(line[len("event:"):])
		}
	}
	return ev
}

// meaning classifies a complete event of a stream of dialect d.
func (d dialect) meaning(raw []byte) meaning {
	ev := parseEvent(raw)
	if !ev.hasData {
		return lifecycle
	}
	if string(ev.data) == doneData {
		return final
	}
	switch d {
	case chat:
		return chatMeaning(ev)
	case messages:
		return messagesMeaning(ev.kind())
	case responses:
		return responsesMeaning(ev.kind())
	case generic:
	}
	return content
}

// kind returns the event field, or else the member "type" of the data.
func (ev event) kind() string {
	if len(ev.name) > 0 {
		return string(ev.name)
	}
	var typed struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(ev.data, &typed) != nil {
		return ""
	}
	return typed.Type
}

func chatMeaning(ev event) meaning {
	if string(ev.name) == "error" || isErrorObject(ev.data) {
		return failed
	}
	if emptyDelta(ev.data) {
		return lifecycle
	}
	return content
}

func messagesMeaning(kind string) meaning {
	switch kind {
	case "message_stop":
		return final
	case "error":
		return failed
	case "message_start", "ping", "content_block_start":
		return lifecycle
	}
	return content
}

func responsesMeaning(kind string) meaning {
	switch kind {
	case "response.completed", "response.incomplete":
		return final
	case "response.failed", "error":
		return failed
	case "response.created", "response.queued", "response.in_progress",
		"response.output_item.added", "response.content_part.added":
		return lifecycle
	}
	return content
}

// isErrorObject reports whether data is an object with an error in it, or the
// {"object":"error" of older vLLM versions. Official clients look for a member
// error wherever it stands. A text has its quotes escaped, so that few events
// need the second look.
func isErrorObject(data []byte) bool {
	if !bytes.Contains(data, []byte(`"error"`)) {
		return false
	}
	rest, ok := member(data, '{', "error")
	if ok {
		return isSomething(rest)
	}
	rest, ok = member(data, '{', "object")
	if ok && bytes.HasPrefix(rest, []byte(`"error"`)) {
		return true
	}
	var v struct {
		Error json.RawMessage `json:"error"`
	}
	return json.Unmarshal(data, &v) == nil && len(v.Error) > 0 && isSomething(v.Error)
}

// isSomething reports whether a JSON value is neither null nor an empty text.
func isSomething(value []byte) bool {
	return !bytes.HasPrefix(value, []byte("null")) && !bytes.HasPrefix(value, []byte(`""`))
}

// member returns what follows open, the quoted key and a colon, with any white
// space between them.
func member(data []byte, open byte, key string) ([]byte, bool) {
	if len(data) == 0 || data[0] != open {
		return nil, false
	}
	data = bytes.TrimLeft(data[1:], " \t")
	if len(data) < len(key)+2 || data[0] != '"' || string(data[1:1+len(key)]) != key || data[1+len(key)] != '"' {
		return nil, false
	}
	data = bytes.TrimLeft(data[len(key)+2:], " \t")
	if len(data) == 0 || data[0] != ':' {
		return nil, false
	}
	return bytes.TrimLeft(data[1:], " \t"), true
}

// emptyDelta reports whether a chat chunk only opens a message: it has a role,
// and none of the members that carry an answer has a value. It looks for the
// members by their quoted names anywhere in the chunk: a name inside of a text
// has its quotes escaped, so it is not found there.
func emptyDelta(data []byte) bool {
	if !bytes.Contains(data, []byte(`"role"`)) {
		return false
	}
	for _, key := range [...]string{
		`"content"`, `"reasoning_content"`, `"reasoning"`, `"refusal"`, `"text"`,
		`"tool_calls"`, `"function_call"`, `"audio"`, `"finish_reason"`, `"usage"`,
	} {
		if hasValue(data, key) {
			return false
		}
	}
	return true
}

// hasValue reports whether a member of the quoted name key has a value other
// than null, "" and [].
func hasValue(data []byte, key string) bool {
	for {
		i := bytes.Index(data, []byte(key))
		if i < 0 {
			return false
		}
		data = data[i+len(key):]
		rest := bytes.TrimLeft(data, " \t")
		if len(rest) == 0 || rest[0] != ':' {
			continue // a string value, not a name
		}
		rest = bytes.TrimLeft(rest[1:], " \t")
		if !bytes.HasPrefix(rest, []byte("null")) && !bytes.HasPrefix(rest, []byte(`""`)) && !bytes.HasPrefix(rest, []byte("[]")) {
			return true
		}
	}
}

// errorStatus returns the HTTP status that an error event names in its code,
// or 502 when it names none.
func errorStatus(raw []byte) int {
	var v struct {
		Code  any             `json:"code"`
		Error json.RawMessage `json:"error"`
	}
	const unknown = 502
	ev := parseEvent(raw)
	if json.Unmarshal(ev.data, &v) != nil {
		return unknown
	}
	if len(v.Error) > 0 {
		var inner struct {
			Code any `json:"code"`
		}
		if json.Unmarshal(v.Error, &inner) == nil && inner.Code != nil {
			v.Code = inner.Code
		}
	}
	if n, ok := v.Code.(float64); ok && n >= 400 && n <= 599 {
		return int(n)
	}
	return unknown
}
