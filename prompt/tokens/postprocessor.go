package tokens

import (
	"encoding/json"
	"slices"
)

// around is what the post-processor puts before and after a single text when
// special tokens are asked for.
type around struct {
	before, after []uint32
}

type postFile struct {
	Type          string              `json:"type"`
	Processors    []json.RawMessage   `json:"processors"`
	Single        []templatePiece     `json:"single"`
	SpecialTokens map[string]template `json:"special_tokens"`
	Sep           bertToken           `json:"sep"`
	Cls           bertToken           `json:"cls"`
}

type template struct {
	IDs []uint32 `json:"ids"`
}

type templatePiece struct {
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
}

// bertToken is ["<s>", 0].
type bertToken struct{ id uint32 }

// UnmarshalJSON reads the pair of a token's text and its id.
func (t *bertToken) UnmarshalJSON(raw []byte) error {
	var text string
	return json.Unmarshal(raw, &[]any{&text, &t.id})
}

// read adds what the file's post-processor puts around a text.
func (a *around) read(raw []byte, depth int) error {
	if isNull(raw) {
		return nil
	}
	var f postFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return malformed("post_processor: %v", err)
	}
	switch f.Type {
	case "ByteLevel": // changes offsets only
		return nil
	case "Sequence":
		if depth > maxNesting {
			return malformed("post_processor nested too deep")
		}
		for _, part := range f.Processors {
			if err := a.read(part, depth+1); err != nil {
				return err
			}
		}
		return nil
	case "RobertaProcessing", "BertProcessing":
		a.before = append([]uint32{f.Cls.id}, a.before...)
		a.after = append(a.after, f.Sep.id)
		return nil
	case "TemplateProcessing":
		return a.readTemplate(&f, raw)
	}
	return unsupported("post_processor", "%s", raw)
}

func (a *around) readTemplate(f *postFile, raw []byte) error {
	var before, after []uint32
	texts := 0
	for _, piece := range f.Single {
		switch {
		case piece.Sequence != nil && piece.Sequence.ID == "A":
			texts++
		case piece.SpecialToken != nil:
			special, ok := f.SpecialTokens[piece.SpecialToken.ID]
			if !ok {
				return malformed("post_processor: special token %q is not defined", piece.SpecialToken.ID)
			}
			if texts == 0 {
				before = append(before, special.IDs...)
			} else {
				after = append(after, special.IDs...)
			}
		default:
			return unsupported("post_processor", "%s", raw)
		}
	}
	if texts != 1 {
		return unsupported("post_processor", "a template that holds the text %d times", texts)
	}
	a.before = slices.Concat(before, a.before)
	a.after = slices.Concat(a.after, after)
	return nil
}
