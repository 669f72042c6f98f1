package forward

import "bytes"

// likeness is how an event of a chat stream with content looks but for its text: the
// events of a stream differ in little else, so that most are known by two comparisons.
// It has no memory of its own: it ends when the stream's buffer moves.
//
// An event is alike when it has the same bytes before the text and behind it, and in
// the text neither a quote nor a line end. What [dialect.meaning] and noteFinish look
// for are quoted names and line ends, so they would find in it what they found in the
// first, but for a text that is itself such a name: see next.
type likeness struct {
	head, tail []byte // of the event, up to the text and from its closing quote on
	vain       int    // times that no event was alike, in succession
}

// mostVain is how often a stream without like events is looked at for them.
const mostVain = 4

// learn takes raw, an event with content and without a finish reason, as the example.
func (l *likeness) learn(raw []byte) {
	l.forget()
	if l.vain >= mostVain || !bytes.HasPrefix(raw, []byte("data:")) || !bytes.HasSuffix(raw, []byte("\n\n")) {
		return
	}
	l.vain++
	for _, name := range [...]string{`"content":"`, `"text":"`} {
		start := bytes.Index(raw, []byte(name))
		if start < 0 {
			continue
		}
		start += len(name)
		end := start + textEnd(raw[start:])
		head, tail := raw[:start], raw[max(start, end):]
		if end > start && (tail[1] == '}' || tail[1] == ',') && lineEnd(head) < 0 && lineEnd(tail) == len(tail)-2 &&
			!bytes.Contains(head, []byte(`"error"`)) && !bytes.Contains(tail, []byte(`"error"`)) {
			l.head, l.tail = head, tail
		}
		return
	}
}

// forget gives up the example, which is in memory of the stream's buffer.
func (l *likeness) forget() { l.head, l.tail = nil, nil }

// next returns the length of the event that b begins with; 0 when it is not alike.
func (l *likeness) next(b []byte) int {
	if len(l.head) == 0 || !bytes.HasPrefix(b, l.head) {
		return 0
	}
	text := b[len(l.head):]
	n := textEnd(text)
	if n <= 0 || !bytes.HasPrefix(text[n:], l.tail) || string(text[:n]) == "error" {
		return 0 // without a text, or with one that needs the second look of isErrorObject
	}
	l.vain = 0
	return len(l.head) + n + len(l.tail)
}

// textEnd returns where the first quote of b is; -1 when a line end comes before it.
func textEnd(b []byte) int {
	for i, c := range b {
		switch c {
		case '"':
			return i
		case '\n', '\r':
			return -1
		}
	}
	return -1
}
