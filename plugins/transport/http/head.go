package http

import (
	"bytes"
	"errors"
	"fmt"
	nethttp "net/http"
	"net/textproto"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"pointsman/forward"
)

// Limits of a response that are not knobs.
const (
	maxHead      = 64 << 10 // bytes of a head, and of trailers
	maxHeaders   = 256      // header lines
	maxChunkLine = 4 << 10  // bytes of a chunk's size line with its extensions
)

var errHeadSize = fmt.Errorf("%w: head or chunk line too large", forward.ErrProtocol)

func malformed(what string) error { return fmt.Errorf("%w: %s", forward.ErrProtocol, what) }

// framing is what marks the end of a body (RFC 9112 6.3).
type framing uint8

const (
	noBody framing = iota
	framedByLength
	framedByChunks
	framedByClose
)

// response is a parsed head.
type response struct {
	status   int
	header   nethttp.Header
	framing  framing
	length   int64 // of a body framed by length; for noBody what was announced, -1 for nothing
	keep     bool  // the connection may be used again
	declared bool  // length was announced
}

// announced returns the Content-Length, -1 when there was none.
func (r *response) announced() int64 {
	if !r.declared {
		return -1
	}
	return r.length
}

// headEnd returns the length of the head at the start of b, or 0 when it is not
// complete. Everything before seen was looked at already.
func headEnd(b []byte, seen int) int {
	from := max(0, seen-3)
	if i := bytes.Index(b[from:], []byte("\r\n\r\n")); i >= 0 {
		return from + i + 4
	}
	return 0
}

// parseHead reads a head that ends in a blank line. method is the request's: a
// response to HEAD has no body.
func parseHead(raw []byte, method string) (response, error) {
	text := string(raw[:len(raw)-2]) // one copy; all names and values are views of it
	line, rest, _ := strings.Cut(text, "\r\n")
	var res response
	minor, err := parseStatusLine(line, &res.status)
	if err != nil {
		return response{}, err
	}
	var told fields
	if err := told.parse(rest); err != nil {
		return response{}, err
	}
	res.header = told.header
	if err := res.frame(method, minor, &told); err != nil {
		return response{}, err
	}
	return res, nil
}

// parseStatusLine reads "HTTP/1.x NNN reason" and returns x.
func parseStatusLine(line string, status *int) (minor byte, err error) {
	if len(line) < 12 || line[:7] != "HTTP/1." || line[7] != '0' && line[7] != '1' || line[8] != ' ' {
		return 0, malformed("status line")
	}
	if len(line) > 12 && line[12] != ' ' || !httpguts.ValidHeaderFieldValue(line) {
		return 0, malformed("status line")
	}
	n := 0
	for _, c := range []byte(line[9:12]) {
		if c < '0' || c > '9' {
			return 0, malformed("status code")
		}
		n = n*10 + int(c-'0')
	}
	if n < 100 {
		return 0, malformed("status code")
	}
	*status = n
	return line[7], nil
}

// fields are header lines. Those that tell how a body is framed are kept apart.
type fields struct {
	header           nethttp.Header
	length, coding   string // the last Content-Length and Transfer-Encoding
	lengths, codings int    // how many there are of them
}

// parse reads header lines, each ended by CR LF.
func (f *fields) parse(text string) error {
	count := strings.Count(text, "\r\n")
	if count > maxHeaders {
		return malformed("too many headers")
	}
	h := make(nethttp.Header, count)
	f.header = h
	values := make([]string, 0, count) // one array for all values
	for text != "" {
		line, rest, ok := strings.Cut(text, "\r\n")
		if !ok {
			return malformed("header line")
		}
		text = rest
		name, value, ok := strings.Cut(line, ":")
		// A folded line starts with white space, which is in no valid name, as
		// is white space before the colon.
		if !ok || !httpguts.ValidHeaderFieldName(name) {
			return malformed("header name")
		}
		value = strings.Trim(value, " \t")
		if !httpguts.ValidHeaderFieldValue(value) {
			return malformed("header value")
		}
		switch name = textproto.CanonicalMIMEHeaderKey(name); name {
		case "Content-Length":
			f.length = value
			f.lengths++
			continue
		case "Transfer-Encoding":
			f.coding = value
			f.codings++
			continue
		}
		if former := h[name]; former != nil {
			h[name] = append(former, value)
			continue
		}
		values = append(values, value)
		h[name] = values[len(values)-1 : len(values) : len(values)]
	}
	return nil
}

// frame decides how the body ends.
func (r *response) frame(method string, minor byte, told *fields) error {
	r.keep = minor == '1' && !httpguts.HeaderValuesContainsToken(r.header["Connection"], "close")
	switch {
	case told.lengths > 0 && told.codings > 0:
		return malformed("both Content-Length and Transfer-Encoding")
	case told.lengths > 1:
		return malformed("more than one Content-Length")
	case told.codings > 0 && (minor == '0' || told.codings > 1 || !strings.EqualFold(told.coding, "chunked")):
		return malformed("Transfer-Encoding")
	}
	if told.lengths == 1 {
		n, err := parseLength(told.length)
		if err != nil {
			return err
		}
		r.length, r.declared = n, true
	}
	switch {
	case method == nethttp.MethodHead, r.status < 200, r.status == nethttp.StatusNoContent, r.status == nethttp.StatusNotModified:
		r.framing = noBody
	case told.codings > 0:
		r.framing = framedByChunks
	case r.declared:
		r.framing = framedByLength
	default:
		r.framing, r.keep = framedByClose, false
	}
	return nil
}

// parseLength reads a Content-Length: digits only.
func parseLength(s string) (int64, error) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, malformed("Content-Length")
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, malformed("Content-Length")
	}
	return n, nil
}

// parseChunkLine reads a chunk's size line without its CR LF: hexadecimal digits
// and perhaps extensions, which mean nothing to us.
func parseChunkLine(line []byte) (int64, error) {
	size, ext, extended := bytes.Cut(line, []byte(";"))
	if extended {
		size = bytes.TrimRight(size, " \t") // bad white space, which RFC 9112 7.1.1 asks to accept
		if !httpguts.ValidHeaderFieldValue(string(ext)) {
			return 0, malformed("chunk extension")
		}
	}
	if len(size) == 0 || len(size) > 15 { // 15 digits cannot overflow
		return 0, malformed("chunk size")
	}
	var n int64
	for _, c := range size {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, malformed("chunk size")
		}
		n = n<<4 | int64(c)
	}
	return n, nil
}

// isMalformed reports whether err is about the worker's bytes.
func isMalformed(err error) bool { return errors.Is(err, forward.ErrProtocol) }
