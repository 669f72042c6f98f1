package admission

import (
	"testing"
	"time"
)

// BenchmarkEnterRelease is what the gate adds to a request that does not wait.
func BenchmarkEnterRelease(b *testing.B) {
	for _, m := range []Mode{Off, Observe, Enforce} {
		b.Run(m.String(), func(b *testing.B) {
			c := DefaultConfig()
			c.Mode, c.MaxOutstanding = m, 100
			g := NewGate(c)
			r := &Request{Units: 1, Pick: func(time.Time) error { return nil }}
			b.ReportAllocs()
			for b.Loop() {
				p, err := g.Enter(b.Context(), r)
				if err != nil {
					b.Fatal(err)
				}
				p.Release()
			}
		})
	}
}
