package tokens

import "bytes"

// splitDeepSeek is the three patterns of DeepSeek V3, one after another: digits by
// up to three, runs of Chinese and Japanese script, then words within what is
// left. A lookahead sees no further than its piece, so lim is the piece's end.
func splitDeepSeek(t *unicodeTables) splitter {
	return func(b []byte, i, lim int) (int, int) {
		if i >= lim {
			lim = t.deepSeekPiece(b, i)
		}
		return t.deepSeekWord(b[:lim], i), lim
	}
}

// deepSeekPiece returns where the piece that starts at b[i] ends.
func (t *unicodeTables) deepSeekPiece(b []byte, i int) int {
	c, n := t.at(b, i)
	switch {
	case c&number != 0:
		return t.upTo(b, i+n, number, 2)
	case c&kana != 0:
		return t.runOf(b, i+n, kana)
	}
	return t.runWithout(b, i+n, number|kana)
}

// deepSeekWord is patternDeepSeekWord at b[i]. What matches nothing (control
// characters, joiners, digits) is one word up to the next match.
func (t *unicodeTables) deepSeekWord(b []byte, i int) int {
	c, n := t.at(b, i)
	if c&(letter|mark) != 0 {
		return t.runOf(b, i+n, letter|mark)
	}
	next := i + n
	if n == 1 && next < len(b) && asciiLetter(b[next]) && isASCIIPunct(b[i]) {
		for next < len(b) && asciiLetter(b[next]) {
			next++
		}
		return next
	}
	var follow class
	if next < len(b) {
		follow, _ = t.at(b, next)
		if follow&(letter|mark) != 0 && c&(newline|punct|symbol) == 0 {
			return t.runOf(b, next, letter|mark)
		}
	}
	switch {
	case c&(punct|symbol) != 0, b[i] == ' ' && follow&(punct|symbol) != 0:
		return newlines(b, t.runOf(b, next, punct|symbol), false)
	case c&space != 0:
		return t.spaces(b, i, true)
	}
	return t.deepSeekGap(b, next)
}

// deepSeekGap returns where what matches nothing ends, given that everything up to
// i does not match.
func (t *unicodeTables) deepSeekGap(b []byte, i int) int {
	for i < len(b) {
		c, n := t.at(b, i)
		if c&(letter|mark|punct|symbol|space) != 0 {
			return i
		}
		if i+n < len(b) {
			if follow, _ := t.at(b, i+n); follow&(letter|mark) != 0 {
				return i // the one before a word belongs to it
			}
		}
		i += n
	}
	return i
}

func asciiLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

func isASCIIPunct(c byte) bool {
	return bytes.IndexByte([]byte("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"), c) >= 0
}
