package forward

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/iotest"

	"pointsman/admission"
	"pointsman/prompt"
)

// Bodies too large to be moved at each growth come whole, or leave nothing in the
// budget.
func TestLargeBodiesAreReadWholeAndGiveTheirMemoryBack(t *testing.T) {
	for _, tc := range []struct {
		name          string
		size          int
		limit, budget int64
		want          error
	}{
		{"up to the pieces", wholeSize, 32 << 20, 0, nil},
		{"a byte more", wholeSize + 1, 32 << 20, 0, nil},
		{"several pieces", wholeSize + 3*pieceSize, 32 << 20, 0, nil},
		{"several pieces and a bit", wholeSize + 3*pieceSize + 17, 32 << 20, 0, nil},
		{"exactly the limit", 6 << 20, 6 << 20, 0, nil},
		{"above the limit", 6<<20 + 1, 6 << 20, 0, prompt.ErrTooLarge},
		{"more than the budget of all bodies", 8 << 20, 32 << 20, 6 << 20, admission.ErrExhausted},
		{"more than that while it is put together", 8 << 20, 32 << 20, 11 << 20, admission.ErrExhausted},
	} {
		s := &Server{bodies: admission.NewBudget(tc.budget)}
		body := bytes.Repeat([]byte("0123456789abcde"), tc.size/15+1)[:tc.size]
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", io.NopCloser(iotest.HalfReader(bytes.NewReader(body))))
		r.ContentLength = -1
		got, err := s.readBody(http.NewResponseController(httptest.NewRecorder()), r, bodyLimit{tc.limit, 1 << 10, false})
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: error %v, want %v", tc.name, err, tc.want)
		}
		held := int64(0)
		if err == nil {
			if !bytes.Equal(*got, body) {
				t.Errorf("%s: %d bytes of %d, or others", tc.name, len(*got), len(body))
			}
			held = int64(cap(*got))
		}
		if s.bodies.Used() != held {
			t.Errorf("%s: %d bytes count, want the buffer's %d", tc.name, s.bodies.Used(), held)
		}
	}
}
