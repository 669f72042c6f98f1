package audit

import (
	"context"
	"errors"

	"pointsman/prompt"
)

// ErrDrifts means that every source of token ids disagreed with the engines.
var ErrDrifts = errors.New("the token counts of this source differ from the engine's; it is left alone for a while")

// Link is a source of token ids.
type Link struct {
	Source    prompt.Source
	Tokenizer prompt.Tokenizer
}

// Chain asks several sources of token ids in turn, as far as the audit trusts
// them. It implements [prompt.Tokenizer].
type Chain struct {
	audit *Auditor
	links []Link
}

// NewChain returns a chain of the given sources, the best first; at least one.
func NewChain(a *Auditor, links ...Link) *Chain { return &Chain{a, links} }

// Tokenize appends the ids of the first source that has them to dst. Its error is
// the last source's, or [ErrDrifts] when that is not asked; dst is then as it
// was.
func (c *Chain) Tokenize(ctx context.Context, r *prompt.Request, dst []uint32) ([]uint32, error) {
	err := ErrDrifts
	for _, link := range c.links {
		if !c.audit.allows(r, link.Source) {
			err = ErrDrifts
			continue
		}
		var ids []uint32
		if ids, err = link.Tokenizer.Tokenize(ctx, r, dst); err == nil {
			r.Source = link.Source
			return ids, nil
		}
	}
	return dst, err
}
