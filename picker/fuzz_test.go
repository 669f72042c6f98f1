package picker_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/picker"
)

// FuzzCandidates tries any mix of tried workers, subsets and open circuits: a
// pick is one that the rules allow, or the error is the one that the rules name.
func FuzzCandidates(f *testing.F) {
	f.Add(uint8(4), uint16(0), uint16(0), uint16(0), "w0:8000", false)
	f.Add(uint8(4), uint16(3), uint16(0xfff), uint16(5), "w1", true)
	f.Add(uint8(1), uint16(0), uint16(1), uint16(1), "", true)
	f.Add(uint8(7), uint16(0x7f), uint16(0x7f), uint16(0), "[::1]", true)
	f.Fuzz(func(t *testing.T, n uint8, triedBits, subsetBits, openBits uint16, odd string, subset bool) {
		count := int(n%12) + 1
		var list []*fleet.Worker
		for i := range count {
			w := worker(fmt.Sprint("w", i))
			if i%3 == 1 {
				w.Endpoint = fmt.Sprintf("10.0.0.%d:81", i)
			}
			if i%5 == 4 {
				w.Host = "fd00::" + fmt.Sprint(i)
			}
			list = append(list, w)
		}
		w := newWorld(t, config(picker.KVAware, 1), list...)
		req := &picker.Request{Model: "m", HasSubset: subset, Tried: []string{odd}}
		if subset {
			req.Subset = []string{odd}
		}
		var within, left []string
		for i, wk := range list {
			bit := uint16(1) << i
			if triedBits&bit != 0 {
				req.Tried = append(req.Tried, wk.ID)
			}
			if subset && subsetBits&bit != 0 {
				end := wk.Destination(8000)
				if i%2 == 0 && wk.Endpoint == "" {
					end = wk.Host
				}
				req.Subset = append(req.Subset, end)
			}
			if openBits&bit != 0 {
				for range 3 {
					w.set.Circuit(wk.ID).Force(w.now).Done(w.now, breaker.Connect)
				}
			}
			hosts := []string{wk.Destination(8000), wk.Host, "[" + wk.Host + "]"}
			if wk.Endpoint != "" {
				hosts = []string{wk.Endpoint, fmt.Sprintf("10.0.0.%d", i)}
			}
			if !subset || slices.ContainsFunc(req.Subset, func(s string) bool { return slices.Contains(hosts, s) }) {
				within = append(within, wk.ID)
				if !slices.Contains(req.Tried, wk.ID) {
					left = append(left, wk.ID)
				}
			}
		}
		d, err := w.p.Pick(w.now, req)
		switch {
		case len(within) == 0:
			if !errors.Is(err, picker.ErrNoEndpoint) {
				t.Fatalf("nothing within the subset: %v", err)
			}
		case len(left) == 0:
			if !errors.Is(err, picker.ErrNoWorker) {
				t.Fatalf("everything tried: %v", err)
			}
		case err != nil:
			t.Fatalf("%v, want one of %v", err, left)
		default:
			closed := slices.DeleteFunc(slices.Clone(left), func(id string) bool { return !w.set.Circuit(id).Allows(t0) })
			if len(closed) > 0 {
				left = closed
			}
			if !slices.Contains(left, d.Worker.ID) {
				t.Fatalf("%s, want one of %v", d.Worker.ID, left)
			}
			d.Done(w.now.Add(time.Second), breaker.Neutral)
		}
	})
}
