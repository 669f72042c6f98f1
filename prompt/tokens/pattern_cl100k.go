package tokens

// cl100kRules are what the patterns of the cl100k family differ in.
type cl100kRules struct {
	word   class // what a word is made of
	digits int   // how many digits go together
}

// splitCL100K is patternCL100K, patternQwen2 and patternQwen35.
func splitCL100K(t *unicodeTables, rules cl100kRules) splitter {
	word := rules.word
	other := space | letter | number | word // what the punctuation rule leaves out
	return func(b []byte, i, _ int) (int, int) {
		c, n := t.at(b, i)
		if c&word != 0 {
			return t.runOf(b, i+n, word), 0
		}
		if b[i] == '\'' {
			if end := contraction(b, i, true); end > i {
				return end, 0
			}
		}
		next := i + n
		var follow class
		if next < len(b) {
			var m int
			follow, m = t.at(b, next)
			if follow&word != 0 && c&(newline|letter|number) == 0 {
				return t.runOf(b, next+m, word), 0
			}
		}
		switch {
		case c&number != 0:
			return t.upTo(b, next, number, rules.digits-1), 0
		case c&other == 0, b[i] == ' ' && next < len(b) && follow&other == 0:
			return newlines(b, t.runWithout(b, next, other), false), 0
		}
		return t.spaces(b, i, true), 0
	}
}

// splitGPT2 is patternGPT2, which ByteLevel with use_regex applies too.
func splitGPT2(t *unicodeTables) splitter {
	const other = space | letter | number
	return func(b []byte, i, _ int) (int, int) {
		if b[i] == '\'' {
			if end := contraction(b, i, false); end > i {
				return end, 0
			}
		}
		start := i
		if b[i] == ' ' && i+1 < len(b) {
			start++
		}
		c, n := t.at(b, start)
		switch {
		case c&letter != 0:
			return t.runOf(b, start+n, letter), 0
		case c&number != 0:
			return t.runOf(b, start+n, number), 0
		case c&space == 0:
			return t.runWithout(b, start+n, other), 0
		}
		return t.spaces(b, i, false), 0
	}
}
