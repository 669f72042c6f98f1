package tokens

import (
	"errors"
	"fmt"
)

// ErrUnsupported is what every [UnsupportedError] is.
var ErrUnsupported = errors.New("tokens: not supported exactly")

// ErrMalformed is wrapped by errors about a file that is not what it claims to be:
// cut off, of wrong types, or inconsistent in itself.
var ErrMalformed = errors.New("tokens: malformed tokenizer file")

// ErrTooLarge is wrapped by errors about a file beyond this package's limits.
var ErrTooLarge = errors.New("tokens: tokenizer file too large")

// ErrInvalidText is returned for text that is not valid UTF-8. The reference
// refuses such text too, so there are no token ids to agree on.
var ErrInvalidText = errors.New("tokens: text is not valid UTF-8")

// ErrStopped is returned for an encoding that was given up; see [Stop].
var ErrStopped = errors.New("tokens: given up before the end of the text")

// UnsupportedError says which feature of a tokenizer file this package does not
// reproduce exactly. Serve that model through the worker's /tokenize instead.
type UnsupportedError struct {
	Feature string // a stable name, fit for a label: "unigram", "normalizer", …
	Detail  string // what the file asks for, shortened
}

// Error names the feature and the detail.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("tokens: %s not supported exactly: %s", e.Feature, e.Detail)
}

// Is makes errors.Is(err, ErrUnsupported) true.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

// maxDetail is how much of a file's own text an error repeats, in bytes.
const maxDetail = 160

func unsupported(feature, format string, args ...any) error {
	detail := fmt.Sprintf(format, args...)
	if len(detail) > maxDetail {
		detail = detail[:maxDetail] + "…"
	}
	return &UnsupportedError{Feature: feature, Detail: detail}
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}
