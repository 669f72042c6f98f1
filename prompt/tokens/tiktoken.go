//nolint:gosec // ids, ranks and offsets are below 2^32, which loading checks
package tokens

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The files of a model with a tiktoken vocabulary. Only Kimi's are known: what
// cuts its words is Python code beside the vocabulary, not data.
const (
	tiktokenFile = "tiktoken.model"
	kimiFile     = "tokenization_kimi.py"
)

// kimiPatterns are the alternatives of Kimi's pattern. Its Python file must hold
// each of them.
//
//nolint:gochecknoglobals // an immutable table
var kimiPatterns = []string{
	`[\p{Han}]+`,
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?`,
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?`,
	`\p{N}{1,3}`,
	` ?[^\s\p{L}\p{N}]+[\r\n]*`,
	`\s*[\r\n]+`,
	`\s+(?!\S)`,
	`\s+`,
}

const (
	kimiReserved = 256     // num_reserved_special_tokens
	kimiChunk    = 400_000 // TIKTOKEN_MAX_ENCODE_CHARS
	kimiRun      = 25_000  // MAX_NO_WHITESPACES_CHARS
)

// loadTiktokenDir reads a directory with a tiktoken vocabulary.
func loadTiktokenDir(dir string) (*Tokenizer, error) {
	raw, err := readLimited(filepath.Join(dir, tiktokenFile))
	if err != nil {
		return nil, fmt.Errorf("neither tokenizer.json nor %s: %w", tiktokenFile, err)
	}
	code, err := os.ReadFile(filepath.Join(dir, kimiFile))
	if err != nil {
		return nil, unsupported("tiktoken", "without %s the pattern that cuts words is not known", kimiFile)
	}
	if err = checkKimi(code); err != nil {
		return nil, err
	}
	config, err := readLimited(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil {
		return nil, err
	}
	t, err := newTiktoken(raw, config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	t.setIdentity(slices.Concat(raw, config))
	if err = t.readConfig(filepath.Join(dir, "tokenizer_config.json")); err != nil {
		return nil, err
	}
	return t, nil
}

// checkKimi refuses Python code that does not say what this package does.
func checkKimi(code []byte) error {
	wanted := slices.Concat(kimiPatterns, []string{
		fmt.Sprintf("num_reserved_special_tokens = %d", kimiReserved),
		"TIKTOKEN_MAX_ENCODE_CHARS = 400_000", "MAX_NO_WHITESPACES_CHARS = 25_000", `allowed_special="all"`,
	})
	for _, text := range wanted {
		if !bytes.Contains(code, []byte(text)) {
			return unsupported("tiktoken", "%s does not hold %q", kimiFile, text)
		}
	}
	return nil
}

func newTiktoken(raw, config []byte) (*Tokenizer, error) {
	t := &Tokenizer{tables: sharedTables(), most: runtime.GOMAXPROCS(0), chunked: true}
	b := &modelBuilder{m: &bpe{byteLevel: true, ignoreMerges: true, unknown: noID}}
	if err := b.readRanks(raw); err != nil {
		return nil, err
	}
	if err := b.setBytes(); err != nil {
		return nil, err
	}
	if b.m.gaps {
		return nil, malformed("%s lacks some single bytes", tiktokenFile)
	}
	b.finish()
	t.model = b.m
	t.pre = &preTokenizer{byteLevel: true, breaks: true, split: splitO200K(t.tables, o200kRules{digits: 3, contractions: true, apart: han, noSlash: true})}
	if err := t.kimiSpecials(config); err != nil {
		return nil, err
	}
	t.setCuts()
	return t, nil
}

// readRanks reads lines of a token in base64 and its rank, which is its id.
func (b *modelBuilder) readRanks(raw []byte) error {
	for line := range bytes.Lines(raw) {
		text, rank, ok := bytes.Cut(bytes.TrimSpace(line), []byte{' '})
		if len(text) == 0 && !ok {
			continue
		}
		token, err := base64.StdEncoding.DecodeString(string(text))
		if err != nil || len(token) == 0 {
			return malformed("%s: %.40q is not base64", tiktokenFile, text)
		}
		id, err := strconv.ParseUint(string(rank), 10, idBits)
		if err != nil {
			return malformed("%s: %.40q is not a rank", tiktokenFile, rank)
		}
		if int(id) != len(b.seen) {
			return unsupported("tiktoken", "rank %d stands where %d is due", id, len(b.seen))
		}
		b.seen = append(b.seen, span{uint32(len(b.texts)), uint32(len(token))})
		b.texts = append(b.texts, token...)
		b.m.count++
	}
	if err := b.layOut(); err != nil {
		return err
	}
	b.rankMerges()
	return nil
}

// rankMerges derives the merges: two tokens merge when what they make together is
// a token, and its id is the rank.
func (b *modelBuilder) rankMerges() {
	m := b.m
	m.pairs.slots = make([]uint64, 1<<bits.Len(uint(3*m.count)))
	m.pairs.made = make([]uint32, m.count)
	pairs := 0
	for id := range uint32(m.count) {
		m.pairs.made[id] = id
		text := m.bytes(id)
		for k := 1; k < len(text); k++ {
			left := m.id(text[:k])
			if left == noID {
				continue
			}
			right := m.id(text[k:])
			if right == noID {
				continue
			}
			if pairs++; 2*pairs > len(m.pairs.slots) {
				m.pairs.grow()
			}
			m.pairs.set(left, right, id)
		}
	}
}

// kimiSpecials reads the special tokens: the ids after the vocabulary, named by
// the config or reserved.
func (t *Tokenizer) kimiSpecials(config []byte) error {
	var f struct {
		Added map[string]AddedToken `json:"added_tokens_decoder"`
	}
	if err := json.Unmarshal(config, &f); err != nil {
		return malformed("tokenizer_config.json: %v", err)
	}
	first := t.model.count
	t.size = first + kimiReserved + 2
	for id := first; id < t.size; id++ {
		a := AddedToken{ID: uint32(id), Content: fmt.Sprintf("<|reserved_token_%d|>", id), Special: true}
		if named, ok := f.Added[strconv.Itoa(id)]; ok {
			a.Content = named.Content
		}
		if a.Content == "" || !utf8.ValidString(a.Content) {
			return malformed("special token %d has no text", id)
		}
		t.added = append(t.added, a)
	}
	for i := range t.added {
		for k := range t.added {
			if i != k && strings.HasPrefix(t.added[i].Content, t.added[k].Content) {
				return unsupported("tiktoken", "special token %q starts with %q: which one matches is left to chance", t.added[i].Content, t.added[k].Content)
			}
		}
	}
	return t.buildMatchers()
}

// chunks calls f for the pieces that Kimi's Python code cuts long text into before
// anything else: 400,000 code points, and runs of 25,000 with or without white
// space. Other tokenizers have one piece.
func (t *Tokenizer) chunks(text []byte, f func(piece []byte)) {
	if !t.chunked || len(text) <= kimiRun {
		f(text)
		return
	}
	from, chars, run, inSpace := 0, 0, 0, false
	for i := 0; i < len(text); {
		c, n := t.tables.at(text, i)
		blank := c&space != 0 || text[i] >= 0x1c && text[i] <= 0x1f // str.isspace
		if chars == kimiChunk {
			f(text[from:i])
			from, chars, run, inSpace = i, 0, 0, blank
		}
		if chars == 0 {
			inSpace = blank
		}
		if blank == inSpace {
			if run++; run > kimiRun {
				f(text[from:i])
				from, run = i, 1
			}
		} else {
			run, inSpace = 1, blank
		}
		chars++
		i += n
	}
	f(text[from:])
}

// oneChunk reports whether chunks leaves text whole.
func (t *Tokenizer) oneChunk(text []byte) bool {
	n := 0
	t.chunks(text, func([]byte) { n++ })
	return n == 1
}
