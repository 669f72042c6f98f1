package template

import "strings"

// detectFormats finds, per engine, whether the template wants text or parts.
func (t *Template) detectFormats() {
	t.vllm, t.sglang = FormatString, FormatString
	loops := allLoops(t.body, nil)
	if vllmOpenAI(t.body, loops) {
		t.vllm = FormatOpenAI
	}
	for _, word := range [...]string{"image", "audio", "video", "vision"} {
		if strings.Contains(t.source, word) {
			t.sglang = FormatOpenAI
		}
	}
	for _, f := range loops {
		for _, name := range [...]string{"message", "msg", "m"} {
			if reads(f.iter, name, "content") {
				t.sglang = FormatOpenAI
			}
		}
	}
}

// reads reports whether x is a variable, or with key that variable's key, under any
// filters, tests and slices (vllm/renderers/hf.py).
func reads(x expr, name, key string) bool {
	switch x := x.(type) {
	case *filterExpr:
		return x.x != nil && reads(x.x, name, key)
	case *testExpr:
		return reads(x.x, name, key)
	case *sliceExpr:
		return reads(x.x, name, key)
	case *nameExpr:
		return key == "" && x.name == name
	case *attrExpr:
		n, ok := x.x.(*nameExpr)
		return key != "" && ok && n.name == name && x.name == key
	case *itemExpr:
		n, ok := x.x.(*nameExpr)
		c, isConst := x.key.(*constExpr)
		return key != "" && ok && isConst && n.name == name && c.v.k == kStr && c.v.s == key
	}
	return false
}

// vllmOpenAI: a loop over the content of an item of messages, where messages may
// have been assigned to other names. Where vLLM's own search stops at a target that
// is no name, it falls back to text.
func vllmOpenAI(body []stmt, loops []*forStmt) bool {
	sets := allSets(body, nil)
	messages := []string{"messages"}
	seen := map[string]bool{"messages": true}
	for i := 0; i < len(messages); i++ {
		for _, s := range sets {
			if !reads(s.x, messages[i], "") {
				continue
			}
			n, ok := s.target.(*nameExpr)
			if !ok {
				return false
			}
			if !seen[n.name] {
				seen[n.name] = true
				messages = append(messages, n.name)
			}
		}
	}
	var items []string
	for _, f := range loops {
		for _, name := range messages {
			if reads(f.iter, name, "") {
				n, ok := f.target.(*nameExpr)
				if !ok {
					return false
				}
				items = append(items, n.name)
				break
			}
		}
	}
	for _, f := range loops {
		for _, name := range items {
			if reads(f.iter, name, "content") {
				_, ok := f.target.(*nameExpr)
				return ok
			}
		}
	}
	return false
}

func allLoops(body []stmt, found []*forStmt) []*forStmt {
	eachStmt(body, func(s stmt) {
		if f, ok := s.(*forStmt); ok {
			found = append(found, f)
		}
	})
	return found
}

func allSets(body []stmt, found []*setStmt) []*setStmt {
	eachStmt(body, func(s stmt) {
		if f, ok := s.(*setStmt); ok {
			found = append(found, f)
		}
	})
	return found
}

// eachStmt calls f for every statement, those inside of others too.
func eachStmt(body []stmt, f func(stmt)) {
	for _, st := range body {
		f(st)
		switch st := st.(type) {
		case *forStmt:
			eachStmt(st.body, f)
			eachStmt(st.alt, f)
		case *ifStmt:
			for _, arm := range st.arms {
				eachStmt(arm, f)
			}
			eachStmt(st.alt, f)
		case *setBlockStmt:
			eachStmt(st.body, f)
		case *macroStmt:
			eachStmt(st.def.body, f)
		case *callBlockStmt:
			eachStmt(st.def.body, f)
		case *genStmt:
			eachStmt(st.def.body, f)
		case *filterBlockStmt:
			eachStmt(st.body, f)
		case *withStmt:
			eachStmt(st.body, f)
		case *blockStmt:
			eachStmt(st.body, f)
		}
	}
}
