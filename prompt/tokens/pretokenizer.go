package tokens

import (
	"bytes"
	"encoding/json"
	"slices"
)

// preTokenizer cuts normalized text into words.
type preTokenizer struct {
	byteLevel   bool
	split       splitter // nil: all of it is one word
	breaks      bool     // split knows line feeds: all but GPT-2's
	prefixSpace bool     // ByteLevel add_prefix_space
	prefixable  bool     // ByteLevel alone: the engine's config decides on prefixSpace
	meta        *metaspace
}

// metaspace replaces spaces by a visible mark and cuts before it.
type metaspace struct {
	mark   []byte
	scheme prependScheme
	split  bool
}

type prependScheme uint8

const (
	prependNever prependScheme = iota
	prependFirst
	prependAlways
)

type preTokenizerFile struct {
	Type           string            `json:"type"`
	Pretokenizers  []json.RawMessage `json:"pretokenizers"`
	Pattern        patternFile       `json:"pattern"`
	Behavior       string            `json:"behavior"`
	Invert         bool              `json:"invert"`
	AddPrefixSpace *bool             `json:"add_prefix_space"`
	UseRegex       *bool             `json:"use_regex"`
	Replacement    string            `json:"replacement"`
	PrependScheme  *string           `json:"prepend_scheme"`
	Split          *bool             `json:"split"`
}

func readPreTokenizer(t *unicodeTables, raw []byte, steps []normStep) (*preTokenizer, error) {
	var parts []preTokenizerFile
	if err := flattenPre(&parts, raw, 0); err != nil {
		return nil, err
	}
	p := &preTokenizer{}
	if len(parts) == 1 && parts[0].Type == "Metaspace" {
		return p, p.readMetaspace(&parts[0], steps)
	}
	if n := len(parts); n > 0 && parts[n-1].Type == "ByteLevel" {
		p.prefixable = n == 1 && bytes.Contains(raw, []byte("add_prefix_space")) && !bytes.Contains(raw, []byte("Sequence"))
		return p, p.readByteLevel(t, parts, raw)
	}
	for i := range parts {
		if !neverMatches(&parts[i], steps) {
			return nil, unsupported("pre_tokenizer", "%s", raw)
		}
	}
	return p, nil
}

func flattenPre(parts *[]preTokenizerFile, raw []byte, depth int) error {
	if isNull(raw) {
		return nil
	}
	var f preTokenizerFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return malformed("pre_tokenizer: %v", err)
	}
	if f.Type != "Sequence" {
		*parts = append(*parts, f)
		return nil
	}
	if depth > maxNesting {
		return malformed("pre_tokenizer nested too deep")
	}
	for _, part := range f.Pretokenizers {
		if err := flattenPre(parts, part, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// neverMatches reports whether the part splits at text that the normalizer leaves
// nowhere, as Gemma's splits at the spaces it has replaced.
func neverMatches(f *preTokenizerFile, steps []normStep) bool {
	return f.Type == "Split" && !f.Invert && f.Pattern.String != nil && *f.Pattern.String != "" && replacesAll(steps, *f.Pattern.String)
}

func (p *preTokenizer) readByteLevel(t *unicodeTables, parts []preTokenizerFile, raw []byte) error {
	last := parts[len(parts)-1]
	p.byteLevel = true
	p.prefixSpace = last.AddPrefixSpace == nil || *last.AddPrefixSpace // the reference's default is true
	useRegex := last.UseRegex == nil || *last.UseRegex
	var patterns []string
	for i := range parts[:len(parts)-1] {
		f := &parts[i]
		isolated := f.Behavior == "Isolated" && !f.Invert
		// Removing what does not match is the same where the pattern leaves nothing out.
		covering := f.Behavior == "Removed" && f.Invert && len(parts) == 2
		if f.Type != "Split" || f.Pattern.Regex == nil || !isolated && !covering {
			return unsupported("pre_tokenizer", "%s", raw)
		}
		patterns = append(patterns, *f.Pattern.Regex)
	}
	if useRegex {
		patterns = append(patterns, patternGPT2)
	}
	if p.prefixSpace && len(parts) > 1 {
		return unsupported("add_prefix_space", "after a Split")
	}
	if len(patterns) == 0 {
		return nil
	}
	if p.split = splitterFor(t, patterns); p.split == nil {
		return unsupported("pre_tokenizer", "unknown pattern %q", patterns)
	}
	p.breaks = patterns[0] != patternGPT2
	return nil
}

func (p *preTokenizer) readMetaspace(f *preTokenizerFile, steps []normStep) error {
	if f.Replacement == "" || runeLen(f.Replacement[0]) != len(f.Replacement) {
		return malformed("Metaspace replacement %q is not one character", f.Replacement)
	}
	p.meta = &metaspace{mark: []byte(f.Replacement), scheme: prependAlways, split: f.Split == nil || *f.Split}
	if f.PrependScheme != nil {
		schemes := map[string]prependScheme{"always": prependAlways, "never": prependNever, "first": prependFirst}
		scheme, ok := schemes[*f.PrependScheme]
		if !ok {
			return malformed("Metaspace prepend_scheme %q", *f.PrependScheme)
		}
		p.meta.scheme = scheme
	}
	if f.AddPrefixSpace != nil && !*f.AddPrefixSpace {
		if f.PrependScheme != nil && p.meta.scheme != prependNever {
			return unsupported("pre_tokenizer", "Metaspace with add_prefix_space false and prepend_scheme %q", *f.PrependScheme)
		}
		p.meta.scheme = prependNever
	}
	removes := slices.ContainsFunc(steps, func(s normStep) bool { return s.kind == normReplace && len(s.to) == 0 })
	if p.meta.scheme == prependFirst && removes {
		return unsupported("pre_tokenizer", "Metaspace prepend_scheme first after a Replace by nothing")
	}
	return nil
}

// words appends the tokens of text between added tokens. atStart says that it
// starts the whole text, continued that the same stretch goes on from before.
func (e *encoder) words(p *preTokenizer, dst []uint32, b []byte, atStart, continued bool) []uint32 {
	if len(b) == 0 {
		return dst
	}
	if p.meta != nil {
		return e.metaWords(p.meta, dst, b, atStart, continued)
	}
	if p.prefixSpace && b[0] != ' ' && !continued {
		e.late = append(append(e.late[:0], ' '), b...)
		b = e.late
	}
	if p.split == nil {
		return e.cached(dst, b, 0, len(b), 0)
	}
	for i, lim, pause := 0, 0, stopBytes; i < len(b); {
		if i >= pause {
			if e.halt() {
				return dst
			}
			pause = i + stopBytes
		}
		var end int
		end, lim = p.split(b, i, lim)
		dst = e.cached(dst, b, i, end, 0)
		i = end
	}
	return dst
}

func (e *encoder) metaWords(m *metaspace, dst []uint32, b []byte, atStart, continued bool) []uint32 {
	out := e.late[:0]
	prepend := m.scheme == prependAlways || m.scheme == prependFirst && atStart
	if prepend && !continued && b[0] != ' ' && !bytes.HasPrefix(b, m.mark) {
		out = append(out, m.mark...)
	}
	from := len(out)
	var changed bool
	if out, changed = replace(out, b, []byte{' '}, m.mark); !changed {
		out = append(out[:from], b...)
	}
	e.late = out
	if !m.split {
		return e.cached(dst, out, 0, len(out), 0)
	}
	for i, pause := 0, stopBytes; i < len(out); {
		if i >= pause {
			if e.halt() {
				return dst
			}
			pause = i + stopBytes
		}
		end := len(out)
		skip := runeLen(out[i])
		if at := bytes.Index(out[i+skip:], m.mark); at >= 0 {
			end = i + skip + at
		}
		dst = e.cached(dst, out, i, end, 0)
		i = end
	}
	return dst
}
