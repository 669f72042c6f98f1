package forward

import (
	"net/http"
	"strconv"

	"pointsman/fleet"
)

// Headers by which an endpoint picker says who serves a request, beside those in
// headers.go. NVIDIA Dynamo's names, canonical and legacy, are read too, but never
// sent.
const (
	headerPrefillRank = "X-Prefill-Data-Parallel-Rank"
	// headerPrefillSkip says that the decode worker named alone is to compute the
	// prompt itself. Without it, a decode worker alone is a mistake (Infera
	// defect P13).
	headerPrefillSkip = "X-Prefill-Skip"
	// headerFallback lists the workers whose forwarders the gateway tries after the
	// named worker's own (failover.md 2B, GIE ordered list).
	headerFallback = "X-Worker-Fallback-Ids"
)

// routing is what the headers say.
type routing struct {
	worker, prefill   string
	fallback          string // the list as sent
	rank, prefillRank string
	alone             bool
}

// routingOf reads one family of names: a picker of the one removes a client's
// forgeries of its own names, not of the other's.
func routingOf(h http.Header) routing {
	if id := field(h, "X-Dynamo-Worker-Instance-Id"); id != "" && field(h, headerWorker) == "" {
		return routing{
			worker: id, prefill: field(h, "X-Dynamo-Prefill-Instance-Id"),
			rank: field(h, "X-Dynamo-Dp-Rank"), prefillRank: field(h, "X-Dynamo-Prefill-Dp-Rank"),
		}
	}
	return routing{
		worker: field(h, headerWorker), prefill: field(h, headerPrefill), fallback: field(h, headerFallback),
		rank: first(h, headerRank, "X-Dp-Rank"), prefillRank: first(h, headerPrefillRank, "X-Prefill-Dp-Rank"),
		alone: field(h, headerPrefillSkip) != "",
	}
}

func first(h http.Header, names ...string) string {
	for _, name := range names {
		if v := field(h, name); v != "" {
			return v
		}
	}
	return ""
}

// routingHeader reports whether k is a header of [routing] or one of its kin.
func routingHeader(k string) bool {
	switch k {
	case headerWorker, headerPrefill, headerRank, headerPrefillRank, headerPrefillSkip,
		"X-Dynamo-Worker-Instance-Id", "X-Dynamo-Prefill-Instance-Id", "X-Dynamo-Dp-Rank", "X-Dynamo-Prefill-Dp-Rank",
		"X-Dynamo-Routing-Mode", "X-Dp-Rank", "X-Prefill-Dp-Rank":
		return true
	}
	return false
}

// ranked returns the key of the worker's rank, if it has such a rank; else id.
func ranked(snap *fleet.Snapshot, id, rank string) string {
	if rank == "" { // the usual case, and Atoi's error would be allocated
		return id
	}
	n, err := strconv.Atoi(rank)
	if err != nil || n < 0 {
		return id
	}
	if w := snap.Worker(id); w == nil || w.Ranks() == 1 || n >= w.Ranks() {
		return id
	}
	return fleet.RankKey(id, n)
}
