package template

// dictMethod returns a method of dict, or nil.
func dictMethod(name string) method {
	switch name {
	case "items":
		return dictItems
	case "keys":
		return dictKeys
	case "values":
		return dictValues
	case "get":
		return dictGet
	case "copy":
		return func(r *run, self value, a *args) value {
			a.exactly(r, "copy", 0, 0)
			return self // never changed, so it needs no copy
		}
	}
	return nil
}

func dictItems(r *run, self value, a *args) value  { return r.dictView(viewItems, self, a) }
func dictKeys(r *run, self value, a *args) value   { return r.dictView(viewKeys, self, a) }
func dictValues(r *run, self value, a *args) value { return r.dictView(viewValues, self, a) }

func (r *run) dictView(part viewPart, self value, a *args) value {
	a.exactly(r, "items", 0, 0)
	return viewOf(self.dict(), part)
}

func dictGet(r *run, self value, a *args) value {
	p := a.exactly(r, "get", 1, 2)
	if v, ok := self.dict().get(r, p[0]); ok {
		return v
	}
	if len(p) == 2 {
		return p[1]
	}
	return none()
}

// listMethod returns a method of list or tuple, or nil.
func listMethod(k kind, name string) method {
	switch name {
	case "index":
		return listIndex
	case "count":
		return func(r *run, self value, a *args) value {
			x := a.exactly(r, "count", 1, 1)[0]
			n := int64(0)
			for _, v := range self.items() {
				r.work(workUnit / 16)
				if r.same(v, x) {
					n++
				}
			}
			return intValue(n)
		}
	case "copy":
		if k == kList {
			return func(r *run, self value, a *args) value {
				a.exactly(r, "copy", 0, 0)
				return self
			}
		}
	}
	return nil
}

func listIndex(r *run, self value, a *args) value {
	p := a.exactly(r, "index", 1, 3)
	items := self.items()
	n := int64(len(items))
	bound := func(i int, missing int64) int64 {
		if i >= len(p) {
			return missing
		}
		if !p[i].isInt() {
			r.typeError("slice indices must be integers or have an __index__ method")
		}
		b := p[i].n
		if b < 0 {
			b = max(b+n, 0)
		}
		return min(b, n)
	}
	for i := bound(1, 0); i < bound(2, n); i++ {
		r.work(workUnit / 16)
		if r.same(items[i], p[0]) {
			return intValue(i)
		}
	}
	if self.k == kTuple {
		return r.fail("ValueError", "tuple.index(x): x not in tuple")
	}
	return r.fail("ValueError", "%s is not in list", r.repr(p[0]))
}
