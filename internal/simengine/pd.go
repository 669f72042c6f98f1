package simengine

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"pointsman/fleet"
)

// PDConfig is one half of a prefill/decode pair. It counts for engines whose
// role is prefill or decode.
//
// The KV cache travels over HTTP in place of RDMA: a decode engine asks the
// prefill engine's side port, whose address it takes from where a real engine of
// its protocol would. It is refused what was not computed for it.
type PDConfig struct {
	Protocol string        // registered protocol; "" (default) registers none and checks no leg
	Port     int           // side port: bootstrap or handshake. 0 (default) picks a free one
	Partner  time.Duration // how long a leg waits for its partner before it is refused. Default 10 s
	Ranks    int           // registered data-parallel size; 0 (default) for none
}

// The protocols whose legs are checked (infera.md §5.5).
const (
	sglangBootstrap = "sglang-bootstrap"
	vllmMooncake    = "vllm-mooncake"
	vllmMoriWrite   = "vllm-mori-write"
	vllmMoriRead    = "vllm-mori-read"
	vllmNixl        = "vllm-nixl"
	atomMooncake    = "atom-mooncake"
)

// Protocols returns the names that [PDConfig].Protocol takes.
func Protocols() []string {
	return []string{atomMooncake, sglangBootstrap, vllmMooncake, vllmMoriRead, vllmMoriWrite, vllmNixl}
}

// side is what an engine of a pair has beside its HTTP port.
type side struct {
	ln       net.Listener
	engineID string

	mu    sync.Mutex
	rooms map[string]*transfer // prefill: those asked for or offered
	used  map[string]bool      // every room seen: none may come twice
	turn  int                  // ranks of prefill legs without one
	// broken has the hosts of the prefill engines from which nothing arrives.
	broken map[string]bool
}

// transfer is the KV cache of one prefill leg.
type transfer struct {
	offered chan struct{} // closed when it has been computed
	taken   chan struct{} // closed when the decode engine has it
	digest  string        // of the prompt
	tokens  int
	engine  string // engine ID, with the rank it was computed on
	decode  string // the only worker it may go to; "" for any
	partner string // who took it
}

// maxRooms bounds the memory for rooms that have been used.
const maxRooms = 1 << 17

func (e *Engine) paired() bool { return e.cfg.PD.Protocol != "" && e.cfg.Role != fleet.Mixed }

// openSide opens the side port.
func (e *Engine) openSide() error {
	if !e.paired() {
		return nil
	}
	ln, err := new(net.ListenConfig).Listen(e.life, "tcp", net.JoinHostPort(e.cfg.Host, itoa(e.cfg.PD.Port)))
	if err != nil {
		return fmt.Errorf("pd port: %w", err)
	}
	e.side = &side{ln: ln, engineID: rand.Text(), rooms: make(map[string]*transfer), used: make(map[string]bool)}
	return nil
}

// SidePort returns the port that a partner asks for KV caches; 0 without one.
func (e *Engine) SidePort() int {
	if e.side == nil {
		return 0
	}
	addr, ok := e.side.ln.Addr().(*net.TCPAddr)
	if !ok {
		return 0
	}
	return addr.Port
}

// params is what the engine registers for its protocol.
func (e *Engine) params() json.RawMessage {
	if !e.paired() {
		return nil
	}
	host, port := e.advertised(), e.SidePort()
	addr := net.JoinHostPort(host, itoa(port))
	vllm := map[string]any{"engine_id": e.side.engineID, "kv_ip": host, "kv_port": 14579, "kv_connector_extra_config": map[string]any{}}
	var v any
	switch e.cfg.PD.Protocol {
	case sglangBootstrap:
		v = map[string]any{}
		if e.cfg.Role == fleet.Prefill {
			v = map[string]any{"bootstrap_addr": addr}
		}
	case vllmMooncake:
		vllm["bootstrap_addr"] = "http://" + addr
		v = vllm
	case vllmMoriWrite, vllmMoriRead:
		vllm["kv_connector_extra_config"] = map[string]any{"handshake_port": port, "notify_port": port, "tp_size": 1}
		v = vllm
	case atomMooncake:
		v = map[string]any{"host": host, "http_port": e.port(), "handshake_port": port, "tp_size": 1, "dp_size": max(1, e.cfg.PD.Ranks)}
	default:
		v = vllm
	}
	raw, err := json.Marshal(v)
	if err != nil { // strings and numbers always marshal
		return nil
	}
	return raw
}

// claim notes that a leg of the room is here, and refuses a second one.
func (s *side) claim(room string) *apiError {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used[room] {
		return badRequest("", "room %s has been used before: give every attempt its own", room)
	}
	if len(s.used) >= maxRooms {
		clear(s.used)
	}
	s.used[room] = true
	return nil
}

// room returns the transfer of that name, which either side may ask for first.
func (s *side) room(name string) *transfer {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.rooms[name]
	if t == nil {
		t = &transfer{offered: make(chan struct{}), taken: make(chan struct{})}
		s.rooms[name] = t
	}
	return t
}

func (s *side) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.rooms, name)
}

// digest identifies the prompts of j.
func digest(j *job) string {
	h := sha256.New()
	for _, p := range j.prompts {
		_ = binary.Write(h, binary.LittleEndian, p) // a hash takes everything
		_, _ = h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// handOver offers the KV cache of a computed prefill leg. A leg that runs at the
// same time as its partner waits for it.
func (e *Engine) handOver(ctx context.Context, l *pdLeg, j *job, rc *entry) *apiError {
	t := e.side.room(l.room)
	t.digest, t.engine, t.decode = digest(j), l.engine, l.decode
	for _, c := range j.choices {
		t.tokens += c.seq.prompt
	}
	close(t.offered)
	if l.answers {
		j.handoff = l.handoff
		time.AfterFunc(e.cfg.PD.Partner, func() { e.side.drop(l.room) })
		return nil
	}
	late := time.NewTimer(e.cfg.PD.Partner)
	defer late.Stop()
	defer e.side.drop(l.room)
	select {
	case <-t.taken:
		rc.update(func(r *Receipt) { r.Partner = t.partner })
		return nil
	case <-ctx.Done():
		return badRequest("", "the client left")
	case <-late.C:
		return brokenTransfer("no decode leg came for room %s within %s", l.room, e.cfg.PD.Partner)
	}
}

// kv is the side port's answer.
type kv struct {
	Worker string `json:"worker_id"`
	Digest string `json:"digest"`
	Tokens int    `json:"tokens"`
}

// serveKV answers a decode engine, once the prefill leg has been computed.
func (e *Engine) serveKV(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	t := e.side.room(q.Get("room"))
	late := time.NewTimer(e.cfg.PD.Partner)
	defer late.Stop()
	refuse := func(format string, args ...any) {
		writeError(w, badRequest("", format, args...))
	}
	select {
	case <-t.offered:
	case <-r.Context().Done():
		return
	case <-late.C:
		e.side.drop(q.Get("room"))
		writeError(w, brokenTransfer("no prefill leg came for room %s within %s", q.Get("room"), e.cfg.PD.Partner))
		return
	}
	switch {
	case q.Get("engine") != "" && q.Get("engine") != t.engine:
		refuse("room %s was computed by engine %s, not %s", q.Get("room"), t.engine, q.Get("engine"))
		return
	case t.decode != "" && t.decode != q.Get("from"):
		refuse("room %s was computed for %s, not for %s", q.Get("room"), t.decode, q.Get("from"))
		return
	}
	writeJSON(w, http.StatusOK, kv{Worker: e.id, Digest: t.digest, Tokens: t.tokens})
	e.side.mu.Lock()
	defer e.side.mu.Unlock()
	if t.partner == "" {
		t.partner = q.Get("from")
		close(t.taken)
	}
}

// receive fetches the KV cache of a decode leg from its prefill engine.
func (e *Engine) receive(ctx context.Context, l *pdLeg, j *job, rc *entry) *apiError {
	if e.side.cut(l.from) {
		return brokenTransfer("Decode transfer failed for room %s with exception KVTransferError: nothing arrives from %s", l.room, l.from)
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.PD.Partner+time.Second)
	defer cancel()
	q := url.Values{"room": {l.room}, "engine": {l.engine}, "from": {e.id}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.from+"/kv?"+q.Encode(), nil) //nolint:gosec // a real engine dials what it is told, too
	if err != nil {
		return badRequest("", "prefill engine %q: %v", l.from, err)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return brokenTransfer("the prefill engine cannot be asked for room %s: %v", l.room, err)
	}
	defer func() { _ = resp.Body.Close() }()
	var got struct {
		kv
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		return brokenTransfer("the prefill engine's answer: %v", err)
	}
	switch {
	case resp.StatusCode >= http.StatusInternalServerError:
		return brokenTransfer("%s", got.Error.Message)
	case resp.StatusCode != http.StatusOK:
		return badRequest("", "%s", got.Error.Message)
	case got.Digest != digest(j):
		return badRequest("", "room %s holds the KV cache of another prompt", l.room)
	}
	for _, c := range j.choices {
		c.seq.received = true
	}
	rc.update(func(r *Receipt) { r.Partner = got.Worker })
	return nil
}

// cutOff makes transfers from the prefill engine at host fail, or work again.
func (s *side) cutOff(host string, broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = make(map[string]bool)
	}
	s.broken[host] = broken
}

// cut reports whether transfers from the side port at addr are to fail.
func (s *side) cut(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	return err == nil && s.broken[host]
}

// servePair makes the KV transfer from one prefill engine fail: {"host", "broken"}.
func (e *Engine) servePair(w http.ResponseWriter, r *http.Request) {
	var spec struct {
		Host   string `json:"host"`
		Broken bool   `json:"broken"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&spec); err != nil || spec.Host == "" {
		writeError(w, badRequest("host", "give {\"host\": a prefill engine's, \"broken\": true} or false"))
		return
	}
	if e.side == nil {
		writeError(w, badRequest("", "this engine is not half of a pair"))
		return
	}
	e.side.cutOff(spec.Host, spec.Broken)
	writeJSON(w, http.StatusOK, spec)
}

// brokenTransfer is a KV cache that did not arrive, as SGLang and vLLM answer it.
func brokenTransfer(format string, args ...any) *apiError {
	return &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: fmt.Sprintf(format, args...)}
}

// rankOf returns the rank that a request runs on, -1 for none: its own, or the
// next in turn, as a load balancer in front of ranks would have it.
func (e *Engine) rankOf(h http.Header) (int, *apiError) {
	size := e.cfg.PD.Ranks
	if size <= 1 {
		return -1, nil
	}
	text := h.Get("X-Data-Parallel-Rank")
	if text == "" {
		e.side.mu.Lock()
		defer e.side.mu.Unlock()
		e.side.turn++
		return e.side.turn % size, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n >= size {
		return -1, badRequest("", "rank %q: there are %d", text, size)
	}
	return n, nil
}
