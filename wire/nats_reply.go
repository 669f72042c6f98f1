package wire

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// ReplyKind says what a message on a reply inbox is.
type ReplyKind uint8

// The kinds. Only data, done and error come from a worker's request handler.
const (
	ReplyStray        ReplyKind = iota // against the protocol
	ReplyData                          // bytes of the answer
	ReplyDone                          // the end; Status is the engine's
	ReplyError                         // the end; Data says why
	ReplyNoResponders                  // the broker: nobody is subscribed
	ReplyStored                        // JetStream: the request is in the stream, as message Stored
	ReplyNotStored                     // JetStream: the stream refused the request
	ReplyEmpty                         // nothing: a client library's acknowledgment, or a broker's notice
)

// Reply is one message on a reply inbox.
type Reply struct {
	Kind   ReplyKind
	Data   []byte // of data and error frames; aliases the message
	Status int    // of a done frame; 0 when it cannot be read
	Seq    int    // the frame's number; -1 when it has none
	Stored uint64 // sequence in [RequestStream]; 0 when unknown
}

// Final reports whether nothing of the request comes behind r.
func (r *Reply) Final() bool { return r.Kind == ReplyDone || r.Kind == ReplyError }

// ParseReply classifies a message by its headers, which may be nil, and its
// payload (infera.md §3.3, failover 4.3). It never fails: what fits nothing is
// a [ReplyStray].
func ParseReply(header map[string][]string, data []byte) Reply {
	r := Reply{Seq: -1}
	kind, known := first(header, HeaderType)
	if !known {
		return parseUntyped(header, data)
	}
	if text, ok := first(header, HeaderSeq); ok {
		if n, err := strconv.Atoi(text); err == nil && n >= 0 {
			r.Seq = n
		}
	}
	switch kind {
	case "data":
		r.Kind, r.Data = ReplyData, data
	case "done":
		r.Kind, r.Status = ReplyDone, parseStatus(header)
	case "error":
		r.Kind, r.Data = ReplyError, data
	}
	return r
}

// first returns the first value of a header whose name is spelled as given.
func first(header map[string][]string, name string) (string, bool) {
	if v := header[name]; len(v) > 0 {
		return v[0], true
	}
	return "", false
}

// parseStatus reads a done frame's status: 200 when there is none, as for an
// Infera router, and 0 when it is no HTTP status (N13).
func parseStatus(header map[string][]string) int {
	text, ok := first(header, HeaderStatus)
	if !ok || text == "" {
		return 200
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 200 || n > 599 {
		return 0
	}
	return n
}

// parseUntyped classifies a message without rs-type, none of which is a
// worker's.
func parseUntyped(header map[string][]string, data []byte) Reply {
	r := Reply{Seq: -1}
	if len(data) == 0 {
		r.Kind = ReplyEmpty
		if status, _ := first(header, "Status"); status == "503" {
			r.Kind = ReplyNoResponders
		}
		return r
	}
	if len(data) > 4096 || data[0] != '{' { // no acknowledgment is that long
		return r
	}
	var ack struct {
		Stream *string         `json:"stream"`
		Seq    *uint64         `json:"seq"`
		Error  json.RawMessage `json:"error"`
	}
	switch err := json.Unmarshal(data, &ack); {
	case err != nil:
	case bytes.HasPrefix(ack.Error, []byte("{")):
		r.Kind = ReplyNotStored
	case ack.Stream != nil && ack.Seq != nil:
		r.Kind = ReplyStored
		if *ack.Stream == RequestStream {
			r.Stored = *ack.Seq
		}
	}
	return r
}
