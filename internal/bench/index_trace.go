//nolint:gosec // G115: numbers of workers, ids and tokens are small or cut on purpose
package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
)

// blockTokens is the block size of the index bench; blocksPerID is how many such
// blocks one id of a trace, which stands for 512 tokens, is.
const (
	blockTokens = 16
	blocksPerID = 32
)

// indexTrace is the ids of each request's prompt, in 512-token pieces. An id
// stands for a piece and all before it, as in the Mooncake traces.
type indexTrace [][]uint64

// blocks returns the number of blocks of all requests.
func (t indexTrace) blocks() (n int) {
	for _, ids := range t {
		n += len(ids) * blocksPerID
	}
	return n
}

// readIndexTrace reads the hash_ids of a JSONL trace.
func readIndexTrace(path string) (indexTrace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer f.Close()
	var t indexTrace
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var req struct {
			IDs []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &req); err != nil {
			return nil, fmt.Errorf("trace %s, request %d: %w", path, len(t)+1, err)
		}
		if len(req.IDs) > 0 {
			t = append(t, req.IDs)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("trace %s: %w", path, err)
	}
	if len(t) == 0 {
		return nil, fmt.Errorf("trace %s: no request with hash_ids", path)
	}
	return t, nil
}

// syntheticIndexTrace makes conversations that share one system prompt and grow
// turn by turn, with about the sizes of the Mooncake conversation trace.
func syntheticIndexTrace(requests int) indexTrace {
	r := rand.New(rand.NewPCG(1, 2)) // reproducible on purpose
	next := uint64(1)
	fresh := func(ids []uint64, n int) []uint64 {
		for range n {
			ids = append(ids, next)
			next++
		}
		return ids
	}
	var open []indexTrace
	var t indexTrace
	for len(t) < requests {
		if len(open) == 0 || r.IntN(10) < 6 {
			ids := fresh([]uint64{0}, 1+int(r.ExpFloat64()*22))
			t = append(t, ids)
			open = append(open, indexTrace{ids})
			continue
		}
		c := open[r.IntN(len(open))]
		ids := fresh(append([]uint64(nil), c[0]...), 1+r.IntN(4))
		c[0] = ids
		t = append(t, ids)
	}
	return t
}

// mixBits is the mixing function of the peers' bench.
func mixBits(a, b uint64) uint64 {
	x := a*0x9E3779B97F4A7C15 ^ (b + 0x7F4A7C159E3779B9)
	x ^= x >> 30
	x *= 0xBF58476D1CE4E5B9
	x ^= x >> 27
	x *= 0x94D049BB133111EB
	return x ^ x>>31
}

// appendTokens appends the tokens of one id's blocks.
func appendTokens(dst []uint32, id uint64) []uint32 {
	for j := range uint64(blocksPerID) {
		c := mixBits(id, j)
		for k := range uint64(blockTokens / 2) {
			v := c + k*0x9E3779B97F4A7C15
			dst = append(dst, uint32(v), uint32(v>>32))
		}
	}
	return dst
}

// appendEngineHashes appends the hashes by which one worker's engine names the
// blocks of a prompt: chained, and of that worker alone.
func appendEngineHashes(dst []uint64, ids []uint64, worker int) []uint64 {
	p := mixBits(uint64(worker), 0x656e67696e65)
	for _, id := range ids {
		for j := range uint64(blocksPerID) {
			p = mixBits(p, mixBits(id, j))
			dst = append(dst, p)
		}
	}
	return dst
}

// naiveSum is the sum over all requests and workers of the matching leading
// blocks when request i is on worker i mod workers, found with sets of
// beginnings: what the index must answer.
func naiveSum(t indexTrace, workers int) int64 {
	held := make([]map[uint64]struct{}, workers)
	for i := range held {
		held[i] = map[uint64]struct{}{}
	}
	beginnings := func(ids []uint64, each func(p uint64) bool) {
		p := uint64(1)
		for _, id := range ids {
			if p = mixBits(p, id); !each(p) {
				return
			}
		}
	}
	for i, ids := range t {
		set := held[i%workers]
		beginnings(ids, func(p uint64) bool { set[p] = struct{}{}; return true })
	}
	var sum int64
	for _, ids := range t {
		for _, set := range held {
			beginnings(ids, func(p uint64) bool {
				if _, ok := set[p]; !ok {
					return false
				}
				sum += blocksPerID
				return true
			})
		}
	}
	return sum
}
