package template

import (
	"unicode"
	"unicode/utf8"
)

// stringIs is str.isdigit and its relatives.
func stringIs(name, s string) bool {
	switch name {
	case "isascii":
		for i := range len(s) {
			if s[i] >= utf8.RuneSelf {
				return false
			}
		}
		return true
	case "isupper":
		return casedAs(s, unicode.IsUpper, unicode.IsLower)
	case "islower":
		return casedAs(s, isLower, unicode.IsUpper)
	case "istitle":
		return isTitle(s)
	}
	for _, c := range s {
		if !runeIs(name, c) {
			return false
		}
	}
	return s != ""
}

// isLower is Unicode's Lowercase, which has more than the letters of class Ll.
func isLower(c rune) bool { return unicode.IsLower(c) || unicode.Is(unicode.Other_Lowercase, c) }

func runeIs(name string, c rune) bool {
	switch name {
	case "isspace":
		return isSpace(c)
	case "isalpha":
		return unicode.IsLetter(c)
	case "isdecimal":
		return unicode.Is(unicode.Nd, c)
	case "isdigit":
		return unicode.Is(unicode.Nd, c) || isSuperDigit(c)
	case "isnumeric":
		return unicode.IsNumber(c)
	default:
		return unicode.IsLetter(c) || unicode.IsNumber(c)
	}
}

// isSuperDigit: Numeric_Type=Digit of the superscripts and circled digits in use.
func isSuperDigit(c rune) bool {
	switch {
	case c == 0xb2, c == 0xb3, c == 0xb9, c == 0x2070, c >= 0x2074 && c <= 0x2079, c >= 0x2080 && c <= 0x2089:
		return true
	case c >= 0x2460 && c <= 0x2468, c >= 0x2474 && c <= 0x247c, c >= 0x2488 && c <= 0x2490, c == 0x24ea:
		return true
	case c >= 0x24f5 && c <= 0x24fd, c == 0x24ff, c >= 0x2776 && c <= 0x277e, c >= 0x2780 && c <= 0x2788, c >= 0x278a && c <= 0x2792:
		return true
	case c >= 0x1369 && c <= 0x1371, c == 0x19da, c >= 0x10a40 && c <= 0x10a43, c >= 0x10e60 && c <= 0x10e68:
		return true
	case c >= 0x11052 && c <= 0x1105a, c >= 0x1f100 && c <= 0x1f10a:
		return true
	}
	return false
}

func casedAs(s string, want, other func(rune) bool) bool {
	seen := false
	for _, c := range s {
		if other(c) || unicode.IsTitle(c) {
			return false
		}
		seen = seen || want(c)
	}
	return seen
}

func isTitle(s string) bool {
	seen, inWord := false, false
	for _, c := range s {
		switch {
		case unicode.IsUpper(c) || unicode.IsTitle(c):
			if inWord {
				return false
			}
			seen, inWord = true, true
		case isLower(c):
			if !inWord {
				return false
			}
			seen = true
		default:
			inWord = false
		}
	}
	return seen
}
