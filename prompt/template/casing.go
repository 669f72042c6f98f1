package template

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Code points whose upper or title case has several: each is followed by its
// mapping and a space (Unicode's SpecialCasing.txt).
const (
	specialUpper = " " +
		"\u00dfSS \u0149\u02bcN \u01f0J\u030c \u0390\u0399\u0308\u0301 \u03b0\u03a5\u0308\u0301 \u0587\u0535\u0552 \u1e96H\u0331 " +
		"\u1e97T\u0308 \u1e98W\u030a \u1e99Y\u030a \u1e9aA\u02be \u1f50\u03a5\u0313 \u1f52\u03a5\u0313\u0300 \u1f54\u03a5\u0313\u0301 " +
		"\u1f56\u03a5\u0313\u0342 \u1f80\u1f08\u0399 \u1f81\u1f09\u0399 \u1f82\u1f0a\u0399 \u1f83\u1f0b\u0399 \u1f84\u1f0c\u0399 " +
		"\u1f85\u1f0d\u0399 \u1f86\u1f0e\u0399 \u1f87\u1f0f\u0399 \u1f88\u1f08\u0399 \u1f89\u1f09\u0399 \u1f8a\u1f0a\u0399 " +
		"\u1f8b\u1f0b\u0399 \u1f8c\u1f0c\u0399 \u1f8d\u1f0d\u0399 \u1f8e\u1f0e\u0399 \u1f8f\u1f0f\u0399 \u1f90\u1f28\u0399 " +
		"\u1f91\u1f29\u0399 \u1f92\u1f2a\u0399 \u1f93\u1f2b\u0399 \u1f94\u1f2c\u0399 \u1f95\u1f2d\u0399 \u1f96\u1f2e\u0399 " +
		"\u1f97\u1f2f\u0399 \u1f98\u1f28\u0399 \u1f99\u1f29\u0399 \u1f9a\u1f2a\u0399 \u1f9b\u1f2b\u0399 \u1f9c\u1f2c\u0399 " +
		"\u1f9d\u1f2d\u0399 \u1f9e\u1f2e\u0399 \u1f9f\u1f2f\u0399 \u1fa0\u1f68\u0399 \u1fa1\u1f69\u0399 \u1fa2\u1f6a\u0399 " +
		"\u1fa3\u1f6b\u0399 \u1fa4\u1f6c\u0399 \u1fa5\u1f6d\u0399 \u1fa6\u1f6e\u0399 \u1fa7\u1f6f\u0399 \u1fa8\u1f68\u0399 " +
		"\u1fa9\u1f69\u0399 \u1faa\u1f6a\u0399 \u1fab\u1f6b\u0399 \u1fac\u1f6c\u0399 \u1fad\u1f6d\u0399 \u1fae\u1f6e\u0399 " +
		"\u1faf\u1f6f\u0399 \u1fb2\u1fba\u0399 \u1fb3\u0391\u0399 \u1fb4\u0386\u0399 \u1fb6\u0391\u0342 \u1fb7\u0391\u0342\u0399 " +
		"\u1fbc\u0391\u0399 \u1fc2\u1fca\u0399 \u1fc3\u0397\u0399 \u1fc4\u0389\u0399 \u1fc6\u0397\u0342 \u1fc7\u0397\u0342\u0399 " +
		"\u1fcc\u0397\u0399 \u1fd2\u0399\u0308\u0300 \u1fd3\u0399\u0308\u0301 \u1fd6\u0399\u0342 \u1fd7\u0399\u0308\u0342 " +
		"\u1fe2\u03a5\u0308\u0300 \u1fe3\u03a5\u0308\u0301 \u1fe4\u03a1\u0313 \u1fe6\u03a5\u0342 \u1fe7\u03a5\u0308\u0342 " +
		"\u1ff2\u1ffa\u0399 \u1ff3\u03a9\u0399 \u1ff4\u038f\u0399 \u1ff6\u03a9\u0342 \u1ff7\u03a9\u0342\u0399 \u1ffc\u03a9\u0399 " +
		"\ufb00FF \ufb01FI \ufb02FL \ufb03FFI \ufb04FFL \ufb05ST \ufb06ST \ufb13\u0544\u0546 \ufb14\u0544\u0535 \ufb15\u0544\u053b " +
		"\ufb16\u054e\u0546 \ufb17\u0544\u053d "
	specialTitle = " " +
		"\u00dfSs \u0149\u02bcN \u01f0J\u030c \u0390\u0399\u0308\u0301 \u03b0\u03a5\u0308\u0301 \u0587\u0535\u0582 \u1e96H\u0331 " +
		"\u1e97T\u0308 \u1e98W\u030a \u1e99Y\u030a \u1e9aA\u02be \u1f50\u03a5\u0313 \u1f52\u03a5\u0313\u0300 \u1f54\u03a5\u0313\u0301 " +
		"\u1f56\u03a5\u0313\u0342 \u1fb2\u1fba\u0345 \u1fb4\u0386\u0345 \u1fb6\u0391\u0342 \u1fb7\u0391\u0342\u0345 \u1fc2\u1fca\u0345 " +
		"\u1fc4\u0389\u0345 \u1fc6\u0397\u0342 \u1fc7\u0397\u0342\u0345 \u1fd2\u0399\u0308\u0300 \u1fd3\u0399\u0308\u0301 " +
		"\u1fd6\u0399\u0342 \u1fd7\u0399\u0308\u0342 \u1fe2\u03a5\u0308\u0300 \u1fe3\u03a5\u0308\u0301 \u1fe4\u03a1\u0313 " +
		"\u1fe6\u03a5\u0342 \u1fe7\u03a5\u0308\u0342 \u1ff2\u1ffa\u0345 \u1ff4\u038f\u0345 \u1ff6\u03a9\u0342 \u1ff7\u03a9\u0342\u0345 " +
		"\ufb00Ff \ufb01Fi \ufb02Fl \ufb03Ffi \ufb04Ffl \ufb05St \ufb06St \ufb13\u0544\u0576 \ufb14\u0544\u0565 \ufb15\u0544\u056b " +
		"\ufb16\u054e\u0576 \ufb17\u0544\u056d "
)

// maySpecial is a cheap test for the code points of the tables.
func maySpecial(c rune) bool {
	switch {
	case c < 0xdf:
		return false
	case c < 0x588:
		return c == 0xdf || c == 0x149 || c == 0x1f0 || c == 0x390 || c == 0x3b0 || c == 0x587
	case c < 0x2000:
		return c >= 0x1e96
	}
	return c >= 0xfb00 && c <= 0xfb17
}

// special looks a code point up in one of the tables.
func special(table string, c rune) string {
	if !maySpecial(c) {
		return ""
	}
	_, s, _ := strings.Cut(table, " "+string(c))
	s, _, _ = strings.Cut(s, " ")
	return s
}

func appendUpper(b []byte, c rune) []byte {
	if s := special(specialUpper, c); s != "" {
		return append(b, s...)
	}
	return utf8.AppendRune(b, unicode.ToUpper(c))
}

func appendTitle(b []byte, c rune) []byte {
	if s := special(specialTitle, c); s != "" {
		return append(b, s...)
	}
	return utf8.AppendRune(b, unicode.ToTitle(c))
}

// appendLower lowers the code point at s[i:]; a sigma that ends a word is special.
func appendLower(b []byte, s string, i int, c rune) []byte {
	switch c {
	case 0x130:
		return append(b, "i\u0307"...)
	case 0x3a3:
		if finalSigma(s, i) {
			return utf8.AppendRune(b, 0x3c2)
		}
	}
	return utf8.AppendRune(b, unicode.ToLower(c))
}

func isCased(c rune) bool {
	return unicode.IsUpper(c) || unicode.IsTitle(c) || isLower(c) || unicode.Is(unicode.Other_Uppercase, c)
}

func caseIgnorable(c rune) bool {
	switch c {
	case '\'', '.', ':', '^', '`', 0xa8, 0xad, 0xaf, 0xb4, 0xb7, 0xb8, 0x2018, 0x2019, 0x2024, 0x2027:
		return true
	}
	return unicode.In(c, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk)
}

// finalSigma: a cased letter before, none after, not counting ignorable ones.
func finalSigma(s string, i int) bool {
	before := s[:i]
	for {
		c, n := utf8.DecodeLastRuneInString(before)
		if n == 0 {
			return false
		}
		if !caseIgnorable(c) {
			if !isCased(c) {
				return false
			}
			break
		}
		before = before[:len(before)-n]
	}
	for _, c := range s[i+len("\u03a3"):] {
		if !caseIgnorable(c) {
			return !isCased(c)
		}
	}
	return true
}

// toCase is str.upper, lower, title, capitalize and swapcase.
func (r *run) toCase(how, s string) string {
	r.alloc(len(s) * 3 / 2)
	b := make([]byte, 0, len(s)+len(s)/8)
	inWord, sigmas := false, 0
	for i, c := range s {
		if c == 0x3a3 {
			if sigmas++; sigmas > 8 {
				r.work(len(s)) // each looks around in the text
			}
		}
		switch how {
		case "upper":
			b = appendUpper(b, c)
		case "lower":
			b = appendLower(b, s, i, c)
		case "capitalize":
			if i == 0 {
				b = appendTitle(b, c)
			} else {
				b = appendLower(b, s, i, c)
			}
		case "title":
			if inWord {
				b = appendLower(b, s, i, c)
			} else {
				b = appendTitle(b, c)
			}
			inWord = isCased(c)
		case "swapcase":
			switch {
			case unicode.IsUpper(c):
				b = appendLower(b, s, i, c)
			case isLower(c):
				b = appendUpper(b, c)
			default:
				b = utf8.AppendRune(b, c)
			}
		}
	}
	return string(b)
}
