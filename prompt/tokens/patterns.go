package tokens

// splitter cuts words. It returns where the word ends that starts at b[i]. lim is
// the splitter's own note: pass 0 for the first word of b, then what it returned.
// A splitter looks only to the right, so any word boundary is a place to start.
type splitter func(b []byte, i, lim int) (end, nextLim int)

// The regular expressions below are known by their exact text; the functions that
// stand for them are in the files named. The texts are those of the models' files.
const (
	patternGPT2   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternCL100K = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen35 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternO200K  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternTekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	patternDeepSeekNumber = `\p{N}{1,3}`
	patternDeepSeekCJK    = `[一-龥぀-ゟ゠-ヿ]+`
	patternDeepSeekWord   = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

// splitterFor returns the splitter of the patterns, which the reference applies
// one after another, or nil when it is not known.
func splitterFor(t *unicodeTables, patterns []string) splitter {
	if len(patterns) == 3 {
		if patterns[0] == patternDeepSeekNumber && patterns[1] == patternDeepSeekCJK && patterns[2] == patternDeepSeekWord {
			return splitDeepSeek(t)
		}
		return nil
	}
	if len(patterns) != 1 {
		return nil
	}
	switch patterns[0] {
	case patternGPT2:
		return splitGPT2(t)
	case patternQwen2:
		return splitCL100K(t, cl100kRules{word: letter, digits: 1})
	case patternQwen35:
		return splitCL100K(t, cl100kRules{word: letter | mark, digits: 1})
	case patternCL100K:
		return splitCL100K(t, cl100kRules{word: letter, digits: 3})
	case patternO200K:
		return splitO200K(t, o200kRules{digits: 3, contractions: true})
	case patternTekken:
		return splitO200K(t, o200kRules{digits: 1})
	}
	return nil
}

// runOf returns where the code points of class want, from i on, end.
func (t *unicodeTables) runOf(b []byte, i int, want class) int {
	for i < len(b) {
		c, n := t.at(b, i)
		if c&want == 0 {
			break
		}
		i += n
	}
	return i
}

// runWithout returns where the code points of none of the classes, from i on, end.
func (t *unicodeTables) runWithout(b []byte, i int, not class) int {
	for i < len(b) {
		c, n := t.at(b, i)
		if c&not != 0 {
			break
		}
		i += n
	}
	return i
}

// upTo returns where at most max code points of class want, from i on, end.
func (t *unicodeTables) upTo(b []byte, i int, want class, limit int) int {
	for ; limit > 0 && i < len(b); limit-- {
		c, n := t.at(b, i)
		if c&want == 0 {
			break
		}
		i += n
	}
	return i
}

// newlines returns where the \r and \n, and with slash the /, from i on end.
func newlines(b []byte, i int, slash bool) int {
	for i < len(b) && (b[i] == '\n' || b[i] == '\r' || slash && b[i] == '/') {
		i++
	}
	return i
}

// spaces is `\s*[\r\n]+|\s+(?!\S)|\s+` at b[i], which must be white space; without
// breaks it is `\s+(?!\S)|\s+`.
func (t *unicodeTables) spaces(b []byte, i int, breaks bool) int {
	end, afterBreak, last := i, -1, i
	for end < len(b) {
		c, n := t.at(b, end)
		if c&space == 0 {
			break
		}
		last = end
		end += n
		if c&newline != 0 {
			afterBreak = end
		}
	}
	switch {
	case breaks && afterBreak >= 0:
		return afterBreak
	case end == len(b) || last == i:
		return end
	}
	return last // the lookahead gives one back: it belongs to what follows
}

// contraction returns where `'s|'t|'re|'ve|'m|'ll|'d` at b[i] ends, or i when it
// does not match. Folding case, the only other spelling is ſ (U+017F) for s.
func contraction(b []byte, i int, fold bool) int {
	if i+1 >= len(b) || b[i] != '\'' {
		return i
	}
	c := b[i+1]
	if fold {
		if c == 0xc5 && i+2 < len(b) && b[i+2] == 0xbf {
			return i + 3
		}
		c = lowerASCII(c)
	}
	switch c {
	case 's', 't', 'm', 'd':
		return i + 2
	}
	if i+2 >= len(b) {
		return i
	}
	d := b[i+2]
	if fold {
		d = lowerASCII(d)
	}
	if c == 'r' && d == 'e' || c == 'v' && d == 'e' || c == 'l' && d == 'l' {
		return i + 3
	}
	return i
}

func lowerASCII(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}
