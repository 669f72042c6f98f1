package template

import (
	"math"
	"math/big"
	"strings"
)

// binary is Python's a op b.
func (r *run) binary(op string, a, b value) value {
	if op == "%" && a.k == kStr {
		return strValue(r.percent(a.s, b))
	}
	if op == "-" && (a.k == kView || b.k == kView) {
		return r.unsupported("set arithmetic on views")
	}
	if a.k == kUndef || a.k == kMissing {
		return r.failUndef(a)
	}
	if b.k == kUndef || b.k == kMissing {
		return r.failUndef(b)
	}
	if a.isNumber() && b.isNumber() {
		return r.arith(op, a, b)
	}
	switch op {
	case "+":
		return r.add(a, b)
	case "*":
		switch {
		case b.isInt() || b.k == kBig:
			return r.repeat(a, b)
		case a.isInt() || a.k == kBig:
			return r.repeat(b, a)
		}
	}
	return r.typeError("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
}

// add is a + b.
func (r *run) add(a, b value) value {
	switch {
	case a.k == kStr && b.k == kStr:
		base := len(r.stack)
		r.stack = append(r.stack, a, b)
		return r.joinStack(base)
	case a.k == kUndef, a.k == kMissing:
		return r.failUndef(a)
	case b.k == kUndef, b.k == kMissing:
		return r.failUndef(b)
	case a.isNumber() && b.isNumber():
		return r.arith("+", a, b)
	case a.isSeq() && a.k == b.k:
		x, y := a.items(), b.items()
		items := r.values(len(x) + len(y))
		copy(items[copy(items, x):], y)
		if a.k == kTuple {
			return r.tuple(items)
		}
		return r.list(items)
	case a.k == kStr:
		return r.typeError("can only concatenate str (not \"%s\") to str", typeName(b))
	case a.isSeq():
		return r.typeError("can only concatenate %s (not \"%s\") to %s", typeName(a), typeName(b), typeName(a))
	}
	return r.typeError("unsupported operand type(s) for +: '%s' and '%s'", typeName(a), typeName(b))
}

// repeat is a sequence times a number.
func (r *run) repeat(a, times value) value {
	n := max(times.n, 0)
	if times.k == kBig && (a.k == kStr || a.isSeq()) {
		return r.fail("OverflowError", "cannot fit 'int' into an index-sized integer")
	}
	size := func(unit int) int {
		if unit > 0 && n > int64(r.mem/unit) {
			r.limit("too much memory")
		}
		return unit * int(n)
	}
	switch a.k {
	case kStr:
		r.alloc(size(len(a.s)))
		return strValue(strings.Repeat(a.s, int(n)*min(len(a.s), 1)))
	case kList, kTuple:
		src := a.items()
		items := r.values(size(len(src)*valueSize) / valueSize)
		for at := 0; at < len(items); {
			at += copy(items[at:], src)
		}
		if a.k == kTuple {
			return r.tuple(items)
		}
		return r.list(items)
	}
	return r.typeError("unsupported operand type(s) for *: '%s' and '%s'", typeName(a), typeName(times))
}

// sign is unary - or +.
func (r *run) sign(op string, v value) value {
	switch v.k {
	case kUndef, kMissing:
		return r.failUndef(v)
	case kBool, kInt:
		if op == "+" {
			return intValue(v.n)
		}
		return r.arith("-", intValue(0), intValue(v.n))
	case kBig:
		if op == "+" {
			return v
		}
		return bigValue(new(big.Int).Neg(v.o.(*big.Int)))
	case kFloat:
		if op == "-" {
			return floatValue(-v.float())
		}
		return v
	}
	return r.typeError("bad operand type for unary %s: '%s'", op, typeName(v))
}

// arith is arithmetic on numbers.
func (r *run) arith(op string, a, b value) value {
	if op == "/" && (a.k == kBig || b.k == kBig) && a.k != kFloat && b.k != kFloat {
		return r.bigQuotient(toBig(a), toBig(b))
	}
	if a.k == kFloat || b.k == kFloat || op == "/" {
		return r.floatArith(op, a, b)
	}
	if a.k != kBig && b.k != kBig {
		if v, ok := r.smallArith(op, a.n, b.n); ok {
			return v
		}
	}
	return r.bigArith(op, toBig(a), toBig(b))
}

// smallArith is arithmetic that fits 64 bits; false when it does not.
func (r *run) smallArith(op string, a, b int64) (value, bool) {
	switch op {
	case "+":
		c := a + b
		return intValue(c), (c > a) == (b > 0)
	case "-":
		c := a - b
		return intValue(c), (c < a) == (b > 0)
	case "*":
		if a == 0 || b == 0 {
			return intValue(0), true
		}
		c := a * b
		ok := c/b == a && (a != -1 || b != math.MinInt64) && (b != -1 || a != math.MinInt64)
		return intValue(c), ok
	case "//", "%":
		if b == 0 {
			return r.fail("ZeroDivisionError", "integer division or modulo by zero"), true
		}
		if b == -1 {
			return value{}, false
		}
		q, m := a/b, a%b
		if m != 0 && (m < 0) != (b < 0) {
			q, m = q-1, m+b
		}
		if op == "%" {
			return intValue(m), true
		}
		return intValue(q), true
	}
	return value{}, false
}

func toBig(v value) *big.Int {
	if v.k == kBig {
		return v.o.(*big.Int)
	}
	return big.NewInt(v.n)
}

func (r *run) bigArith(op string, a, b *big.Int) value {
	r.step()
	r.alloc((a.BitLen() + b.BitLen()) / 8)
	z := new(big.Int)
	switch op {
	case "+":
		z.Add(a, b)
	case "-":
		z.Sub(a, b)
	case "*":
		if a.BitLen()+b.BitLen() > maxBigBits {
			r.limit("an integer is too long")
		}
		z.Mul(a, b)
	case "//", "%":
		if b.Sign() == 0 {
			return r.fail("ZeroDivisionError", "integer division or modulo by zero")
		}
		m := new(big.Int)
		z.QuoRem(a, b, m)
		if m.Sign() != 0 && m.Sign() != b.Sign() {
			z.Sub(z, big.NewInt(1))
			m.Add(m, b)
		}
		if op == "%" {
			z = m
		}
	case "**":
		return r.bigPow(a, b)
	}
	if z.BitLen() > maxBigBits {
		r.limit("an integer is too long")
	}
	return bigValue(z)
}

// bigQuotient is a / b, rounded once.
func (r *run) bigQuotient(a, b *big.Int) value {
	if b.Sign() == 0 {
		return r.fail("ZeroDivisionError", "division by zero")
	}
	r.alloc((a.BitLen() + b.BitLen()) / 8)
	f, _ := new(big.Rat).SetFrac(a, b).Float64()
	if math.IsInf(f, 0) {
		return r.fail("OverflowError", "integer division result too large for a float")
	}
	return floatValue(f)
}

func (r *run) bigPow(a, b *big.Int) value {
	if b.Sign() < 0 {
		return r.floatArith("**", bigValue(a), bigValue(b))
	}
	if a.BitLen() <= 1 { // 0, 1 and -1 only know zero, odd and even
		if b.Sign() > 0 {
			b = big.NewInt(2 - int64(b.Bit(0))) //nolint:gosec // one bit
		}
	} else if !b.IsInt64() || b.Int64() > maxBigBits || int64(a.BitLen())*b.Int64() > maxBigBits {
		r.limit("an integer is too long")
	}
	r.alloc(a.BitLen() / 8 * max(1, int(b.Int64())))
	return bigValue(new(big.Int).Exp(a, b, nil))
}

// toFloat fails as Python's float() does on integers beyond its range.
func (r *run) toFloat(v value) float64 {
	switch v.k {
	case kFloat:
		return v.float()
	case kBig:
		f, _ := new(big.Float).SetInt(v.o.(*big.Int)).Float64()
		if math.IsInf(f, 0) {
			r.fail("OverflowError", "int too large to convert to float")
		}
		return f
	}
	return float64(v.n)
}

func (r *run) floatArith(op string, a, b value) value {
	x, y := r.toFloat(a), r.toFloat(b)
	switch op {
	case "+":
		return floatValue(x + y)
	case "-":
		return floatValue(x - y)
	case "*":
		return floatValue(x * y)
	case "**":
		return r.floatPow(x, y)
	}
	if y == 0 {
		return r.fail("ZeroDivisionError", "division by zero")
	}
	switch op {
	case "/":
		return floatValue(x / y)
	case "%":
		_, m := floorMod(x, y)
		return floatValue(m)
	}
	q, _ := floorMod(x, y)
	return floatValue(q)
}

// floorMod is Python's divmod on floats.
func floorMod(x, y float64) (q, m float64) {
	m = math.Mod(x, y)
	q = (x - m) / y
	if m != 0 {
		if (y < 0) != (m < 0) {
			m += y
			q--
		}
	} else {
		m = math.Copysign(0, y)
	}
	if q == 0 {
		return math.Copysign(0, x/y), m
	}
	f := math.Floor(q)
	if q-f > 0.5 {
		f++
	}
	return f, m
}

// pow is x**y rounded once, as the C library's is. Go's math.Pow is not.
func (r *run) pow(x, y float64) float64 {
	if y == 0.5 {
		return math.Sqrt(x)
	}
	whole := y == math.Floor(y) && math.Abs(y) <= 2048
	if math.IsNaN(x) || math.IsInf(x, 0) || math.IsNaN(y) || math.IsInf(y, 0) || x == 0 || y == 0 {
		return math.Pow(x, y)
	}
	if !whole {
		r.unsupported("a power that is no whole number")
	}
	const prec = 256
	z, base := new(big.Float).SetPrec(prec).SetInt64(1), new(big.Float).SetPrec(prec).SetFloat64(x)
	for n := int(math.Abs(y)); n > 0; n >>= 1 {
		if n&1 != 0 {
			z.Mul(z, base)
		}
		base.Mul(base, base)
	}
	if y < 0 {
		z.Quo(new(big.Float).SetPrec(prec).SetInt64(1), z)
	}
	f, _ := z.Float64()
	return f
}

func (r *run) floatPow(x, y float64) value {
	if x == 0 && y < 0 {
		return r.fail("ZeroDivisionError", "0.0 cannot be raised to a negative power")
	}
	if x < 0 && y != math.Floor(y) && !math.IsInf(y, 0) && !math.IsNaN(y) && !math.IsInf(x, 0) {
		return r.unsupported("a complex number")
	}
	z := r.pow(x, y)
	if math.IsInf(z, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		return r.fail("OverflowError", "Numerical result out of range")
	}
	return floatValue(z)
}
