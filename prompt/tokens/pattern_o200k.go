package tokens

// o200kRules are what the patterns of the o200k family differ in.
type o200kRules struct {
	digits       int   // how many digits go together
	contractions bool  // whether 's and the like belong to the word before
	apart        class // runs of it are words of their own, before anything else
	noSlash      bool  // a / does not follow punctuation like a line feed
}

// splitO200K is patternO200K, patternTekken and Kimi's pattern.
func splitO200K(t *unicodeTables, rules o200kRules) splitter {
	const other = space | letter | number
	return func(b []byte, i, _ int) (int, int) {
		c, n := t.at(b, i)
		if c&rules.apart != 0 {
			return t.runOf(b, i+n, rules.apart), 0
		}
		if end := t.o200kWord(b, i, c, n, rules.apart); end > i {
			if rules.contractions {
				end = contraction(b, end, true)
			}
			return end, 0
		}
		next := i + n
		if c&number != 0 {
			return t.upTo(b, next, number, rules.digits-1), 0
		}
		if c&other != 0 {
			if b[i] != ' ' || next == len(b) {
				return t.spaces(b, i, true), 0
			}
			if follow, _ := t.at(b, next); follow&other != 0 {
				return t.spaces(b, i, true), 0
			}
		}
		return newlines(b, t.runWithout(b, next, other), !rules.noSlash), 0
	}
}

// o200kWord tries the two word alternatives, each with and without the optional
// first code point, in the order of a backtracking matcher. It returns i when none
// matches.
func (t *unicodeTables) o200kWord(b []byte, i int, c class, n int, not class) int {
	prefix := c&(newline|letter|number) == 0 && i+n < len(b)
	if prefix {
		if end := t.upperLower(b, i+n, not); end > 0 {
			return end
		}
	}
	bare := c&(upper|lower) != 0
	if bare {
		if end := t.upperLower(b, i, not); end > 0 {
			return end
		}
	}
	// No lower case anywhere: the second alternative is a run of upper case.
	if prefix {
		if end := t.runOfBut(b, i+n, upper, not); end > i+n {
			return t.runOfBut(b, end, lower, not)
		}
	}
	if bare {
		if end := t.runOfBut(b, i, upper, not); end > i {
			return t.runOfBut(b, end, lower, not)
		}
	}
	return i
}

// upperLower is `U*L+` at b[i]; 0 when it does not match. U and L share letters
// without case and marks, neither has the class not: where no L follows the run of U, the last shared one is
// given back and ends the match.
func (t *unicodeTables) upperLower(b []byte, i int, not class) int {
	end, shared := i, 0
	for end < len(b) {
		c, n := t.at(b, end)
		if c&not != 0 {
			break
		}
		if c&upper == 0 {
			if c&lower != 0 {
				return t.runOfBut(b, end+n, lower, not)
			}
			break
		}
		end += n
		if c&lower != 0 {
			shared = end
		}
	}
	return shared
}

// runOfBut returns where the code points of class want that are not of class not,
// from i on, end.
func (t *unicodeTables) runOfBut(b []byte, i int, want, not class) int {
	for i < len(b) {
		c, n := t.at(b, i)
		if c&want == 0 || c&not != 0 {
			break
		}
		i += n
	}
	return i
}
