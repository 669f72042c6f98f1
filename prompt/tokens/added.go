//nolint:gosec // ids, ranks and offsets are below 2^32, which loading checks
package tokens

import (
	"bytes"
	"unicode/utf8"
)

// AddedToken is an entry of a file's added_tokens: text that is one token wherever
// it stands.
type AddedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only between code points that are not \w
	LStrip     bool   `json:"lstrip"`      // takes white space before it along
	RStrip     bool   `json:"rstrip"`      // takes white space after it along
	Normalized bool   `json:"normalized"`  // looked for in normalized text
	Special    bool   `json:"special"`     // not part of what people read
}

// match is a stretch of text: an added token, or with id noID the text between.
type match struct {
	from, to int
	id       uint32
}

// matcher finds added tokens, leftmost first and of those the longest.
type matcher struct {
	tokens []*AddedToken
	nodes  []trieNode
	first  [256]bool
	only   int // the first byte if all tokens share it, else -1
}

type trieNode struct {
	labels []byte
	next   []int32
	token  int32 // index into tokens, or -1
}

// newMatcher returns a matcher for the texts, which stand for the tokens of the
// same index; nil when there are none. Of equal texts the first counts.
func newMatcher(tokens []*AddedToken, texts [][]byte) *matcher {
	if len(tokens) == 0 {
		return nil
	}
	m := &matcher{tokens: tokens, nodes: []trieNode{{token: -1}}, only: -1}
	for i, text := range texts {
		at := int32(0)
		for _, c := range text {
			at = m.child(at, c)
		}
		if m.nodes[at].token < 0 {
			m.nodes[at].token = int32(i)
		}
		m.first[text[0]] = true
	}
	if root := m.nodes[0].labels; len(root) == 1 {
		m.only = int(root[0])
	}
	return m
}

func (m *matcher) child(at int32, c byte) int32 {
	if k := bytes.IndexByte(m.nodes[at].labels, c); k >= 0 {
		return m.nodes[at].next[k]
	}
	n := int32(len(m.nodes))
	m.nodes = append(m.nodes, trieNode{token: -1})
	m.nodes[at].labels = append(m.nodes[at].labels, c)
	m.nodes[at].next = append(m.nodes[at].next, n)
	return n
}

// find returns the next occurrence from i on; ok is false when there is none.
func (m *matcher) find(b []byte, i int) (start, end int, token *AddedToken, ok bool) {
	for {
		if m.only >= 0 {
			k := bytes.IndexByte(b[i:], byte(m.only))
			if k < 0 {
				return 0, 0, nil, false
			}
			i += k
		} else {
			for i < len(b) && !m.first[b[i]] {
				i++
			}
		}
		if i >= len(b) {
			return 0, 0, nil, false
		}
		if j, t := m.longest(b, i); t >= 0 {
			return i, j, m.tokens[t], true
		}
		i++
	}
}

func (m *matcher) longest(b []byte, i int) (end int, token int32) {
	token = -1
	at := int32(0)
	for ; i < len(b); i++ {
		node := &m.nodes[at]
		k := bytes.IndexByte(node.labels, b[i])
		if k < 0 {
			break
		}
		at = node.next[k]
		if t := m.nodes[at].token; t >= 0 {
			end, token = i+1, t
		}
	}
	return end, token
}

// split appends the added tokens in b and the text between them to dst, as the
// reference's find_matches does (tokenizers src/tokenizer/added_vocabulary.rs).
func (m *matcher) split(t *unicodeTables, dst []match, b []byte) []match {
	done := 0
	for i := 0; m != nil && i < len(b); {
		start, end, token, ok := m.find(b, i)
		if !ok {
			break
		}
		i = end
		if token.SingleWord && !apart(t, b, start, end) {
			continue
		}
		if token.LStrip {
			start = max(trimRight(t, b, start), done)
		}
		if token.RStrip {
			end = t.runOf(b, end, space)
		}
		if done < start {
			dst = append(dst, match{done, start, noID})
		}
		dst = append(dst, match{start, end, token.ID})
		done = end
	}
	if done != len(b) {
		dst = append(dst, match{done, len(b), noID})
	}
	return dst
}

// apart reports whether no word touches b[start:end].
func apart(t *unicodeTables, b []byte, start, end int) bool {
	if start > 0 {
		if c, _ := t.at(b, lastRune(b, start)); c&wordly != 0 {
			return false
		}
	}
	if end < len(b) {
		if c, _ := t.at(b, end); c&wordly != 0 {
			return false
		}
	}
	return true
}

// trimRight returns where the white space that ends at b[end] starts.
func trimRight(t *unicodeTables, b []byte, end int) int {
	for end > 0 {
		start := end - 1
		if b[start] >= utf8.RuneSelf {
			start = lastRune(b, end)
		}
		if c, _ := t.at(b, start); c&space == 0 {
			break
		}
		end = start
	}
	return end
}

func (m *matcher) memory() int {
	if m == nil {
		return 0
	}
	n := 256
	for i := range m.nodes {
		n += 56 + 5*len(m.nodes[i].labels)
	}
	return n
}
