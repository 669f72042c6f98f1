package template

import "math/big"

// globalFunc returns Jinja's and transformers' global functions.
func globalFunc(name string) (value, bool) {
	var f function
	switch name {
	case "range":
		f = globalRange
	case "dict":
		f = func(r *run, a *args) value { return dictOf(r.buildDict("dict", a)) }
	case "namespace":
		f = func(r *run, a *args) value { return value{k: kNamespace, o: r.buildDict("dict", a)} }
	case "cycler":
		f = globalCycler
	case "joiner":
		f = func(r *run, a *args) value {
			p := a.bind(r, "joiner", 0, "sep")
			if p[0].k == kMissing {
				p[0] = strValue(", ")
			}
			return value{k: kJoiner, o: &joiner{sep: p[0]}}
		}
	case "raise_exception":
		f = func(r *run, a *args) value {
			p := a.bind(r, "raise_exception", 1, "message")
			return r.fail("TemplateError", "%s", r.str(p[0]))
		}
	case "strftime_now":
		f = func(r *run, a *args) value {
			p := a.bind(r, "strftime_now", 1, "format")
			return strValue(r.strftime(r.text("strftime() argument 1", p[0])))
		}
	default:
		return value{}, false
	}
	return funcValue(name, f), true
}

func globalRange(r *run, a *args) value {
	p := a.exactly(r, "range", 1, 3)
	g := &rangeObj{step: 1}
	for _, v := range p {
		if v.k == kBig {
			return r.bigRange(p)
		}
	}
	if len(p) == 1 {
		g.stop = r.number(p, 0, 0)
	} else {
		g.start, g.stop, g.step = r.number(p, 0, 0), r.number(p, 1, 0), r.number(p, 2, 1)
	}
	if g.step == 0 {
		return r.fail("ValueError", "range() arg 3 must not be zero")
	}
	span := new(big.Int).Sub(big.NewInt(g.stop), big.NewInt(g.start))
	span.Quo(span, big.NewInt(g.step))
	if !span.IsInt64() || span.Int64() > maxRange || g.len() > maxRange {
		return r.fail("OverflowError", "Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).")
	}
	return value{k: kRange, o: g}
}

// bigRange: bounds beyond 64 bits make a range too big, or empty, or exotic.
func (r *run) bigRange(p []value) value {
	for i := range p {
		if p[i].k != kBig {
			r.number(p, i, 0)
		}
	}
	if len(p) < 3 {
		lo, hi := new(big.Int), toBig(p[len(p)-1])
		if len(p) == 2 {
			lo = toBig(p[0])
		}
		if span := new(big.Int).Sub(hi, lo); span.Sign() > 0 && (!span.IsInt64() || span.Int64() > maxRange) {
			return r.fail("OverflowError", "Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).")
		}
	}
	return r.unsupported("a range of integers beyond 64 bits")
}

// buildDict is dict(mapping or pairs, **named).
func (r *run) buildDict(fn string, a *args) *dict {
	if len(a.pos) > 1 {
		r.typeError("%s expected at most 1 argument, got %d", fn, len(a.pos))
	}
	d := r.newDict(len(a.named))
	if len(a.pos) == 1 {
		src := a.pos[0]
		if src.k == kDict {
			for _, e := range src.dict().entries {
				d.set(r, e.key, e.val)
			}
		} else {
			r.addPairs(d, src)
		}
	}
	for _, n := range a.named {
		d.set(r, strValue(n.name), n.v)
	}
	return d
}

func (r *run) addPairs(d *dict, src value) {
	if src.k == kUndef || src.k == kMissing {
		r.failUndef(src)
	}
	it := r.iter(src)
	for i := 0; ; i++ {
		x, ok := it.next(r)
		if !ok {
			return
		}
		r.step()
		if !isSized(x) && x.k != kIter {
			r.typeError("cannot convert dictionary update sequence element #%d to a sequence", i)
		}
		kv := r.seq(x)
		if len(kv) != 2 {
			r.fail("ValueError", "dictionary update sequence element #%d has length %d; 2 is required", i, len(kv))
		}
		d.set(r, kv[0], kv[1])
	}
}

// cycler is Jinja's cycler(): values in turn.
type cycler struct {
	items []value
	pos   int
}

func globalCycler(r *run, a *args) value {
	a.noNamed(r, "cycler")
	if len(a.pos) == 0 {
		return r.fail("RuntimeError", "at least one item has to be provided")
	}
	items := r.values(len(a.pos))
	copy(items, a.pos)
	return value{k: kCycler, o: &cycler{items: items}}
}

func (c *cycler) attr(name string) (value, bool) {
	switch name {
	case "next":
		return funcValue(name, func(r *run, a *args) value {
			a.exactly(r, name, 0, 0)
			v := c.items[c.pos]
			c.pos = (c.pos + 1) % len(c.items)
			return v
		}), true
	case "reset":
		return funcValue(name, func(r *run, a *args) value {
			a.exactly(r, name, 0, 0)
			c.pos = 0
			return none()
		}), true
	case "current":
		return c.items[c.pos], true
	case "pos":
		return intValue(int64(c.pos)), true
	case "items":
		return tupleOf(c.items), true
	}
	return value{}, false
}

// joiner is Jinja's joiner(): empty once, then the separator.
type joiner struct {
	sep  value
	used bool
}

func (j *joiner) call(r *run, a *args) value {
	a.exactly(r, "joiner", 0, 0)
	if !j.used {
		j.used = true
		return strValue("")
	}
	return j.sep
}

func (j *joiner) attr(name string) (value, bool) {
	switch name {
	case "sep":
		return j.sep, true
	case "used":
		return boolValue(j.used), true
	}
	return value{}, false
}
