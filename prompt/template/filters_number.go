package template

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

func filterAbs(r *run, v value, a *args) value {
	a.bind(r, "abs", 0)
	switch v.k {
	case kBool, kInt, kBig:
		if toBig(v).Sign() < 0 {
			return r.sign("-", v)
		}
		return r.sign("+", v)
	case kFloat:
		return floatValue(math.Abs(v.float()))
	}
	return r.typeError("bad operand type for abs(): '%s'", typeName(v))
}

// filterInt is int(v) with a default for what is no number.
func filterInt(r *run, v value, a *args) value {
	p := a.bind(r, "int", 0, "default", "base")
	def := p[0]
	if def.k == kMissing {
		def = intValue(0)
	}
	switch v.k {
	case kUndef, kMissing:
		return r.failUndef(v)
	case kBool, kInt, kBig:
		return r.sign("+", v)
	case kFloat:
		return r.truncFloat(v.float(), def, false)
	case kStr:
		base := 10
		if p[1].k != kMissing {
			base = int(r.number(p[1:2], 0, 10))
		}
		if n, ok := r.parseInt(v.s, base); ok {
			return n
		}
		if f, ok := r.parseFloat(v.s); ok {
			return r.truncFloat(f, def, true)
		}
	}
	return def
}

// truncFloat is int(f): NaN has no integer, and infinity overflows unless caught.
func (r *run) truncFloat(f float64, def value, caught bool) value {
	if math.IsNaN(f) {
		return def
	}
	if math.IsInf(f, 0) {
		if caught {
			return def
		}
		return r.fail("OverflowError", "cannot convert float infinity to integer")
	}
	b, _ := new(big.Float).SetFloat64(f).Int(nil)
	return bigValue(b)
}

// asciiDigits replaces the decimal digits of other scripts, as Python reads them.
func asciiDigits(s string) string {
	return strings.Map(func(c rune) rune {
		if c < 0x80 || !unicode.Is(unicode.Nd, c) {
			return c
		}
		zero := c // decimal digits come in runs of ten
		for unicode.Is(unicode.Nd, zero-1) && c-zero < 9 {
			zero--
		}
		return '0' + c - zero
	}, s)
}

// underscoresOK: single ones, between digits only.
func underscoresOK(s string) bool {
	for i := range len(s) {
		if s[i] == '_' && (i == 0 || i == len(s)-1 || !isAlnum(s[i-1]) || !isAlnum(s[i+1])) {
			return false
		}
	}
	return true
}

func isAlnum(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' }

// parseInt is Python's int(s, base).
func (r *run) parseInt(s string, base int) (value, bool) {
	if base != 0 && (base < 2 || base > 36) {
		return value{}, false
	}
	s = asciiDigits(strings.TrimFunc(s, isSpace))
	r.work(len(s) * 4)
	neg := strings.HasPrefix(s, "-")
	if neg || strings.HasPrefix(s, "+") {
		s = s[1:]
	}
	if len(s) > 2 && s[0] == '0' {
		if b := map[byte]int{'b': 2, 'o': 8, 'x': 16}[s[1]|0x20]; b != 0 && (base == b || base == 0) {
			base = b
			s = strings.TrimPrefix(s[2:], "_")
		}
	}
	if base == 0 {
		base = 10
		if len(s) > 1 && s[0] == '0' && strings.Trim(s, "0_") != "" {
			return value{}, false
		}
	}
	if s == "" || !isAlnum(s[0]) || !underscoresOK(s) {
		return value{}, false
	}
	s = strings.ReplaceAll(s, "_", "")
	if len(s) > maxIntDigits {
		return value{}, false
	}
	b, ok := new(big.Int).SetString(s, base)
	if !ok {
		return value{}, false
	}
	if neg {
		b.Neg(b)
	}
	return bigValue(b), true
}

// parseFloat is Python's float(s).
func (r *run) parseFloat(s string) (float64, bool) {
	s = asciiDigits(strings.TrimFunc(s, isSpace))
	r.work(len(s) * 4)
	body := strings.TrimLeft(s, "+-")
	if len(s)-len(body) > 1 || body == "" || !underscoresOK(s) {
		return 0, false
	}
	switch strings.ToLower(body) {
	case "inf", "infinity", "nan":
	default:
		if strings.Trim(body, "0123456789.eE+-_") != "" {
			return 0, false // Go also reads hexadecimal
		}
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}

func filterFloat(r *run, v value, a *args) value {
	p := a.bind(r, "float", 0, "default")
	switch v.k {
	case kUndef, kMissing:
		return r.failUndef(v)
	case kBool, kInt, kBig, kFloat:
		return floatValue(r.toFloat(v))
	case kStr:
		if f, ok := r.parseFloat(v.s); ok {
			return floatValue(f)
		}
	}
	if p[0].k == kMissing {
		return floatValue(0)
	}
	return p[0]
}

func filterRound(r *run, v value, a *args) value {
	p := a.bind(r, "round", 0, "precision", "method")
	how := "common"
	if p[1].k == kStr {
		how = p[1].s
	}
	if how != "common" && how != "ceil" && how != "floor" || p[1].k != kMissing && p[1].k != kStr {
		r.fail("FilterArgumentError", "method must be common, ceil or floor")
	}
	digits := intValue(0)
	if p[0].k != kMissing {
		digits = p[0]
	}
	if how == "common" {
		return r.round(v, r.number([]value{digits}, 0, 0))
	}
	scale := r.binary("**", intValue(10), digits)
	x := r.binary("*", v, scale)
	switch x.k {
	case kBool, kInt, kBig:
	case kFloat:
		f := math.Floor(x.float())
		if how == "ceil" {
			f = math.Ceil(x.float())
		}
		if math.IsNaN(f) {
			return r.fail("ValueError", "cannot convert float NaN to integer")
		}
		x = r.truncFloat(f, none(), false)
	default:
		return r.typeError("must be real number, not %s", typeName(x))
	}
	return r.binary("/", x, scale)
}

// round is Python's round(v, digits): half to even on the exact value.
func (r *run) round(v value, digits int64) value {
	switch v.k {
	case kBool, kInt, kBig:
		if digits < 0 {
			return r.unsupported("rounding to tens")
		}
		return r.sign("+", v)
	case kFloat:
		f := v.float()
		switch {
		case digits < 0:
			return r.unsupported("rounding to tens")
		case digits > 330 || math.IsNaN(f) || math.IsInf(f, 0):
			return v
		}
		f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(digits), 64), 64)
		return floatValue(f)
	}
	return r.typeError("type %s doesn't define __round__ method", typeName(v))
}
