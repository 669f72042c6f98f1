package picker

import (
	"hash/maphash"
	"strconv"
	"time"
)

// SessionKey makes a [Request].Session of what names the conversation: its ID, else
// what the body calls its user. namespace is the tenant, or else what the client
// authenticated with: equal IDs of different tenants are different conversations
// (failover §5 S17). Without an ID there is no session.
func SessionKey[S ~string | ~[]byte](namespace, id S, user []byte) string {
	if len(id) == 0 && len(user) == 0 {
		return ""
	}
	key := make([]byte, 0, 24+len(namespace)+max(len(id), len(user)))
	key = strconv.AppendInt(key, int64(len(namespace)), 10)
	key = append(append(key, ':'), namespace...)
	if len(id) > 0 {
		return string(append(append(key, 'c'), id...))
	}
	return string(append(append(key, 'u'), user...))
}

// maxSessions bounds the conversations that are remembered: the one that was silent
// longest goes first (failover §5 S17).
const maxSessions = 100_000

// sessions remembers which workers served a conversation last. Keys are hashed with
// a seed of this process: a client cannot make two conversations share a place, and
// no text of a client's is kept. The picker's mutex guards it.
type sessions struct {
	seed           maphash.Seed
	most           int
	at             map[uint64]int32 // slot of a key
	slots          []pin
	newest, oldest int32
}

// pin is one conversation's workers.
type pin struct {
	key          uint64
	worker       string // key of the target
	prefill      string // key of a pair's other target; "" for none
	used         time.Time
	newer, older int32 // slots; none at the ends
}

const none = -1

func newSessions(most int) sessions {
	return sessions{seed: maphash.MakeSeed(), most: most, at: make(map[uint64]int32), newest: none, oldest: none}
}

// key names a conversation about one model.
func (ss *sessions) key(req *Request) uint64 {
	var h maphash.Hash
	h.SetSeed(ss.seed)
	_, _ = h.WriteString(req.Model) // never fails (hash/maphash)
	_ = h.WriteByte(0)
	_, _ = h.WriteString(req.Session)
	return h.Sum64()
}

// find returns the workers of the conversation, nil when it is not known or was
// silent for longer than ttl.
func (ss *sessions) find(now time.Time, key uint64, ttl time.Duration) *pin {
	i, ok := ss.at[key]
	if !ok {
		return nil
	}
	if p := &ss.slots[i]; now.Sub(p.used) <= ttl {
		return p
	}
	return nil
}

// set remembers that the conversation went to the given workers at now.
func (ss *sessions) set(now time.Time, key uint64, worker, prefill string) {
	i, ok := ss.at[key]
	switch {
	case ok:
		ss.unlink(i)
	case len(ss.slots) < ss.most:
		i = int32(len(ss.slots)) //nolint:gosec // below most
		ss.slots = append(ss.slots, pin{})
		ss.at[key] = i
	default:
		i = ss.oldest
		ss.unlink(i)
		delete(ss.at, ss.slots[i].key)
		ss.at[key] = i
	}
	ss.slots[i] = pin{key: key, worker: worker, prefill: prefill, used: now, newer: none, older: ss.newest}
	if ss.newest != none {
		ss.slots[ss.newest].newer = i
	}
	ss.newest = i
	if ss.oldest == none {
		ss.oldest = i
	}
}

func (ss *sessions) unlink(i int32) {
	p := &ss.slots[i]
	if p.newer != none {
		ss.slots[p.newer].older = p.older
	} else {
		ss.newest = p.older
	}
	if p.older != none {
		ss.slots[p.older].newer = p.newer
	} else {
		ss.oldest = p.newer
	}
}

// Sessions returns how many conversations are remembered, those included that have
// been silent for too long and whose place nobody has needed yet.
func (p *Picker) Sessions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sessions.at)
}

// binds reports whether req belongs to a conversation that is to stay where it was.
func (p *Picker) binds(req *Request) bool {
	if req.Session == "" {
		return false
	}
	switch p.cfg.SessionAffinity {
	case SessionsAll:
		return true
	case SessionsPD:
		return p.sel.pool != nil && p.sel.pool.pairs && !req.NoPair
	}
	return false
}

func (p *Picker) sessionTTL() time.Duration {
	if p.cfg.SessionTTL == 0 {
		return defaultSessionTTL
	}
	return p.cfg.SessionTTL
}

// recall pins p.sel to the worker of req's conversation, if it may serve.
func (p *Picker) recall(now time.Time, req *Request) {
	if !p.binds(req) {
		return
	}
	if was := p.sessions.find(now, p.sessions.key(req), p.sessionTTL()); was != nil && was.prefill == "" {
		p.sel.pinned = 1 + p.sel.trusts(was.worker, was.used)
	}
}

// recallPair is recall for the legs of a pair. It returns the pair's class.
func (p *Picker) recallPair(now time.Time, req *Request) (class int, bound bool) {
	if !p.binds(req) {
		return 0, false
	}
	was := p.sessions.find(now, p.sessions.key(req), p.sessionTTL())
	if was == nil || was.prefill == "" {
		return 0, false
	}
	f, d := &p.pre, &p.sel
	i, j := d.trusts(was.worker, was.used), f.trusts(was.prefill, was.used)
	if i == none || j == none || d.rows[i].class != f.rows[j].class {
		return 0, false
	}
	if !p.breakers.Trusts(f.rows[j].Worker.ID, d.rows[i].Worker.ID, was.used) {
		return 0, false
	}
	d.pinned, f.pinned = i+1, j+1
	return d.rows[i].class, true
}

// A pin yields to load: where one conversation, or what passes for one because many
// clients send the same name, would bring a worker this many requests above twice
// what the others have on average, it moves on (failover §5 S15: the load term must
// bound affinity).
const pinSlack = 8

// crowded reports whether row i has far more in flight than the others.
func (s *selection) crowded(i int) bool {
	mine, others, sum := s.rows[i].t.host, 0, 0
	for k, r := range s.rows {
		if s.why[k] == eligible && r.t.host != mine {
			others++
			sum += r.t.host.requests
		}
	}
	return others > 0 && mine.requests > pinSlack+2*sum/others
}

// trusts returns the eligible row of the target, none when there is not one or when
// it has been away, unhealthy or open since the given time: a pin that such a worker
// had is gone for good (failover §2D, session pin).
func (s *selection) trusts(key string, since time.Time) int {
	r := s.tab.keys[key]
	if r == nil || s.allOpen || !r.t.circuit.Closed() ||
		r.t.circuit.Recovered().After(since) || r.t.host.warmAt.After(since) {
		return none
	}
	for i := range s.rows {
		if s.rows[i] == r && s.why[i] == eligible && !s.crowded(i) {
			return i
		}
	}
	return none
}

// bind remembers where req's conversation goes: keys of targets, prefill "" for
// none.
func (p *Picker) bind(now time.Time, req *Request, worker, prefill string) {
	if !p.binds(req) {
		return
	}
	key := p.sessions.key(req)
	was := p.sessions.find(now, key, p.sessionTTL())
	if prefill == "" && was != nil && was.worker == worker { // a turn that goes without its prefill leg
		prefill = was.prefill
	}
	p.metrics.bound(was, worker, prefill)
	p.sessions.set(now, key, worker, prefill)
}
