package forward

import "bytes"

// likeness is how an event of a chat stream with content looks but for its text: the
// events of a stream differ in little else, so that most are known by two comparisons.
// It keeps a copy of the example, if that is no longer than likeSize; a longer one is not
// worth it.
//
// An event is alike when it has the same bytes before the text and behind it, and in
// the text neither a quote nor a line end. What [dialect.meaning] and noteFinish look
// for are quoted names and line ends, so they would find in it what they found in the
// first, but for a text that is itself such a name: see next.
type likeness struct {
	head, tail uint16 // lengths in example: of what is up to the text, and from its closing quote on
	vain       uint8  // times that no event was alike, in succession
	example    [likeSize]byte
}

const (
	mostVain = 4   // how often a stream without like events is looked at for them
	likeSize = 448 // engines' events have 150 to 350 bytes without their texts
)

// learn takes raw, an event with content and without a finish reason, as the example.
func (l *likeness) learn(raw []byte) {
	l.head = 0
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
			l.keep(head, tail)
		}
		return
	}
}

func (l *likeness) keep(head, tail []byte) {
	if len(head)+len(tail) > len(l.example) {
		return
	}
	copy(l.example[:], head)
	copy(l.example[len(head):], tail)
	l.head, l.tail = uint16(len(head)), uint16(len(tail)) //nolint:gosec // no more than likeSize
}

// next returns the length of the event that b begins with; 0 when it is not alike.
func (l *likeness) next(b []byte) int {
	head := l.example[:l.head]
	if len(head) == 0 || !bytes.HasPrefix(b, head) {
		return 0
	}
	tail := l.example[l.head:][:l.tail]
	text := b[len(head):]
	n := textEnd(text)
	if n <= 0 || !bytes.HasPrefix(text[n:], tail) || string(text[:n]) == "error" {
		return 0 // without a text, or with one that needs the second look of isErrorObject
	}
	l.vain = 0
	return len(head) + n + len(tail)
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
