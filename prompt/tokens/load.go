//nolint:gosec // the operator names the files; ids are below 2^20
package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"unicode/utf8"
)

// MaxFileBytes is the largest tokenizer file that is read; the largest known one
// has 34 MB.
const MaxFileBytes = 256 << 20

// Load reads a tokenizer.json, or the one in a directory. A tokenizer_config.json
// beside it names BOS and EOS, and may say that the engine adds others than
// tokenizer.json does (see engineConfig). A directory without tokenizer.json may hold
// Kimi's tiktoken.model instead. Errors are
// [UnsupportedError] for a file that can't be honoured exactly, or wrap
// [ErrMalformed], [ErrTooLarge] or the file system's error.
func Load(path string) (*Tokenizer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	dir := filepath.Dir(path)
	if info.IsDir() {
		dir = path
		path = filepath.Join(dir, "tokenizer.json")
		if _, err = os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return loadTiktokenDir(dir)
		}
	}
	raw, err := readLimited(path)
	if err != nil {
		return nil, err
	}
	t, err := LoadBytes(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err = t.readConfig(filepath.Join(dir, "tokenizer_config.json")); err != nil {
		return nil, err
	}
	return t, nil
}

func readLimited(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if info.Size() > MaxFileBytes {
		return nil, fmt.Errorf("%s: %w: %d bytes, at most %d are read", path, ErrTooLarge, info.Size(), int64(MaxFileBytes))
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return raw, nil
}

// LoadBytes is [Load] of the contents of a tokenizer.json.
func LoadBytes(raw []byte) (*Tokenizer, error) {
	if len(raw) > MaxFileBytes {
		return nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, len(raw))
	}
	if !utf8.Valid(raw) {
		return nil, malformed("not UTF-8")
	}
	file, err := members(raw)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{tables: sharedTables(), most: runtime.GOMAXPROCS(0)}
	if err := t.readParts(file); err != nil {
		return nil, err
	}
	t.setCuts()
	t.setIdentity(raw)
	return t, nil
}

func (t *Tokenizer) readParts(file map[string][]byte) error {
	if !isNull(file["truncation"]) {
		return unsupported("truncation", "%s", file["truncation"])
	}
	if err := checkPadding(file["padding"]); err != nil {
		return err
	}
	var err error
	if t.steps, err = readNormalizer(nil, file["normalizer"]); err != nil {
		return err
	}
	if t.pre, err = readPreTokenizer(t.tables, file["pre_tokenizer"], t.steps); err != nil {
		return err
	}
	if err = t.around.read(file["post_processor"], 0); err != nil {
		return err
	}
	if isNull(file["model"]) {
		return malformed("no model")
	}
	b, err := readModel(file["model"], t.pre.byteLevel)
	if err != nil {
		return err
	}
	t.model = b.m
	return t.readAdded(file["added_tokens"], b)
}

// checkPadding refuses padding that changes a single text.
func checkPadding(raw []byte) error {
	if isNull(raw) {
		return nil
	}
	var f struct {
		Strategy any  `json:"strategy"`
		Multiple *int `json:"pad_to_multiple_of"`
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		return malformed("padding: %v", err)
	}
	if f.Strategy != "BatchLongest" || f.Multiple != nil {
		return unsupported("padding", "%s", raw)
	}
	return nil
}

// readAdded gives the added tokens their ids in the way of the reference, which
// does not trust the file's, and builds the matchers.
func (t *Tokenizer) readAdded(raw []byte, b *modelBuilder) error {
	var list []AddedToken
	if !isNull(raw) {
		if err := json.Unmarshal(raw, &list); err != nil {
			return malformed("added_tokens: %v", err)
		}
	}
	next := uint32(b.m.count)
	known := make(map[string]bool, len(list))
	for i := range list {
		a := &list[i]
		if a.Content == "" || known[a.Content] {
			return unsupported("added_tokens", "%q is empty or there twice", a.Content)
		}
		known[a.Content] = true
		id := b.tokenID(a.Content)
		if id == noID {
			if b.m.count != len(b.m.start)-1 {
				return unsupported("added_tokens", "%q needs a new id, and the vocabulary's ids have holes", a.Content)
			}
			id = next
			next = max(next, id+1)
		}
		if id != a.ID {
			return unsupported("added_tokens", "%q has id %d, the reference gives it %d", a.Content, a.ID, id)
		}
	}
	t.added = list
	t.size = max(int(next), len(b.m.start)-1)
	return t.buildMatchers()
}

func (t *Tokenizer) buildMatchers() error {
	var raw, normal []*AddedToken
	var rawText, normalText [][]byte
	e := encoder{}
	// Special tokens come first: of texts that normalize to the same, the first counts.
	for _, special := range []bool{true, false} {
		for i := range t.added {
			a := &t.added[i]
			if a.Special != special {
				continue
			}
			if !a.Normalized {
				raw, rawText = append(raw, a), append(rawText, []byte(a.Content))
				continue
			}
			text := append([]byte(nil), e.normalize(t.tables, t.steps, []byte(a.Content), false)...)
			if len(text) == 0 {
				return unsupported("added_tokens", "%q is empty once normalized", a.Content)
			}
			normal, normalText = append(normal, a), append(normalText, text)
		}
	}
	t.raw, t.normal = newMatcher(raw, rawText), newMatcher(normal, normalText)
	return nil
}
