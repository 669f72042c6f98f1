package admission_test

import (
	"fmt"
	"sync"
	"testing"

	"pointsman/admission"
)

func ExampleBudget() {
	b := admission.NewBudget(100)
	fmt.Println(b.Take(60), b.Take(60), b.Used())
	b.Give(60)
	fmt.Println(b.Take(60))
	// Output:
	// true false 60
	// true
}

func TestABudgetWithoutLimitOnlyCounts(t *testing.T) {
	b := admission.NewBudget(0)
	if !b.Take(1<<60) || b.Used() != 1<<60 {
		t.Errorf("Used() = %d after taking 1<<60 of no limit", b.Used())
	}
}

// TestTheSumNeverExceedsTheLimit has many goroutines take and give; what is held
// by those who were let in must fit at every moment, and all must come back.
func TestTheSumNeverExceedsTheLimit(t *testing.T) {
	const limit, each = 10, 3
	b := admission.NewBudget(limit)
	var held, refused int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 2000 {
				if !b.Take(each) {
					mu.Lock()
					refused++
					mu.Unlock()
					continue
				}
				mu.Lock()
				if held += each; held > limit {
					t.Errorf("%d held of a budget of %d", held, limit)
				}
				held -= each
				mu.Unlock()
				b.Give(each)
			}
		})
	}
	wg.Wait()
	if b.Used() != 0 {
		t.Errorf("%d still taken when all is given back", b.Used())
	}
}
