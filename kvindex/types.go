package kvindex

import "fmt"

// Hash names one block and all blocks before it: equal hashes mean equal
// prefixes. See [HashTokens].
type Hash = uint64

// Blocks is a prompt cut into KV blocks of one size.
type Blocks struct {
	Size   int    // tokens per block
	Hashes []Hash // chained hash of each full block, in order
}

// Instance is the id of one target. Ids count up from zero while no target has
// been forgotten; a forgotten target's id is never given out again as it was, so
// a stale one is harmless: it holds nothing and takes nothing.
type Instance uint32

// An Instance is a slot of the target table and how often that slot was given
// out before.
const (
	slotBits = 21
	slotMask = 1<<slotBits - 1
)

func (in Instance) slot() int { return int(in & slotMask) }

// Kind says what an [Event] does.
type Kind uint8

// The event kinds that engines publish.
const (
	Stored  Kind = iota // Hashes now hold Tokens
	Removed             // Hashes are gone from Tier
	Cleared             // the target's cache is empty
)

// String returns the kind as metrics spell it.
func (k Kind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Removed:
		return "removed"
	case Cleared:
		return "cleared"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Tier is a bit set of the media a block is on. Any of them makes it a hit.
type Tier uint8

// The media that engines report.
const (
	Device Tier = 1 << iota
	Host
	Disk
)

// Event is one change of one target's cache.
type Event struct {
	Kind      Kind
	Hashes    []uint64 // the engine's own hashes: opaque handles
	Parent    uint64   // engine hash of the block before the first; see HasParent
	HasParent bool     // false: Tokens start a prompt
	Tokens    []uint32 // of all blocks, for Stored
	BlockSize int      // tokens per block, for Stored
	Extra     uint64   // [Extra] of the prompt, used when HasParent is false; 0 for none
	Tier      Tier     // 0 means Device
}

func (e *Event) tier() Tier {
	if e.Tier == 0 {
		return Device
	}
	return e.Tier
}

// Batch is one message of one publisher. Decoders reuse its memory; the index
// keeps none of it.
type Batch struct {
	Seq     uint64  // the publisher's sequence number; see HasSeq
	HasSeq  bool    // false: the publisher does not number its messages
	Rank    int     // attn_dp_rank, -1 when absent; not used by the index
	At      float64 // publisher's unix seconds; 0 unknown
	Events  []Event
	Skipped int // events that the decoder could not use; the feed counts them
}

// Mode is how much the index knows of a target.
type Mode uint8

// The modes, by the numbers of the gauge pointsman_kvindex_mode.
const (
	None      Mode = iota // nothing is known
	Predicted             // what was routed there, or events told before, is assumed to be there
	Exact                 // the engine's events arrive and are in step
)

// String returns none, predicted or exact.
func (m Mode) String() string {
	switch m {
	case None:
		return "none"
	case Predicted:
		return "predicted"
	case Exact:
		return "exact"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}
