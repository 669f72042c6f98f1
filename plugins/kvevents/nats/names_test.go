package nats

import (
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pointsman/internal/broker"
	"pointsman/internal/testfleet"
	"pointsman/wire"
)

func TestSubjectsAndKeysAreInferas(t *testing.T) {
	for id, token := range map[string]string{
		"10.0.0.1:30000": "MTAuMC4wLjE6MzAwMDA", "host.example.com:8000": "aG9zdC5leGFtcGxlLmNvbTo4MDAw",
		"[::1]:8080": "Wzo6MV06ODA4MA",
	} {
		if got := Subject(id, 3); got != "infera.kv.events."+token+".3" {
			t.Errorf("subject of %s: %s", id, got)
		}
		if got, rank, err := parseSubject("infera.kv.events." + token + ".3"); got != id || rank != 3 || err != nil {
			t.Errorf("the subject of %s is read as %q, %d, %v", id, got, rank, err)
		}
	}
}

func TestNamesThatNobodyWrites(t *testing.T) {
	tok := wire.Token("w:1")
	for _, s := range []string{
		"", "infera.kv.events", "infera.kv.events.", "infera.kv.events.." + tok, "infera.kv.events." + tok, "infera.kv.events." + tok + ".",
		"infera.kv.events." + tok + ".-1", "infera.kv.events." + tok + ".01", "infera.kv.events." + tok + ".+1",
		"infera.kv.events." + tok + ".99999999999999999999", "infera.kv.events." + tok + ".70000",
		"infera.kv.events." + tok + "=.0", "infera.kv.events.....0", "infera.kv.events._____.0", "infera.req." + tok + ".0",
	} {
		if id, rank, err := parseSubject(s); !errors.Is(err, ErrName) {
			t.Errorf("%q is read as %q, %d, %v", s, id, rank, err)
		}
	}
}

func TestTheBucketsValue(t *testing.T) {
	data, _ := hex.DecodeString("92cf341839abbe30be0bcf37b6de0623bdb5ca") // contract, relay's own
	want := []uint64{0x341839abbe30be0b, 0x37b6de0623bdb5ca}
	if got, err := decodeView(data, 10); err != nil || !slices.Equal(got, want) {
		t.Errorf("%x, %v", got, err)
	}
	if got, err := decodeView(data, 1); err != nil || !slices.Equal(got, want[:1]) {
		t.Errorf("with a limit of one: %x, %v", got, err)
	}
	if got, err := decodeView([]byte{0x90}, 10); err != nil || len(got) != 0 {
		t.Errorf("the empty list: %x, %v", got, err)
	}
	for name, bad := range map[string]string{
		"nothing": "", "no list": "c0", "a list of text": "91a161", "too short": "92cf341839abbe30be0b", "more after it": "9000", "below 0": "91ff",
	} {
		data, _ := hex.DecodeString(bad)
		if _, err := decodeView(data, 10); !errors.Is(err, ErrView) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func FuzzSubject(f *testing.F) {
	f.Add(Subject("10.0.0.1:30000", 0))
	f.Add("infera.kv.events.MTAu\nMC4wLjE6MzAwMDA.0")
	f.Add("infera.kv.events.a.1")
	f.Fuzz(func(t *testing.T, subject string) {
		id, rank, err := parseSubject(subject)
		switch {
		case err != nil:
			if !errors.Is(err, ErrName) {
				t.Errorf("untyped error %v", err)
			}
		case Subject(id, rank) != subject:
			t.Errorf("%q is read as %q rank %d, whose subject is %q", subject, id, rank, Subject(id, rank))
		}
	})
}

func FuzzView(f *testing.F) {
	f.Add(encodeView([]uint64{1, 2, 1 << 63}))
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0x90})
	f.Fuzz(func(t *testing.T, data []byte) {
		hashes, err := decodeView(data, 1000)
		if err != nil {
			if !errors.Is(err, ErrView) {
				t.Errorf("untyped error %v", err)
			}
			return
		}
		again, err := decodeView(encodeView(hashes), 1000)
		if err != nil || !slices.Equal(again, hashes) {
			t.Errorf("%x encoded and read again: %x, %v", hashes, again, err)
		}
	})
}

// What anybody may put on the subjects never breaks the subscriber.
func FuzzMessage(f *testing.F) {
	p := testfleet.NewPrompt(1, 2)
	f.Add(Subject("w:1", 0), vllm(p.Stored(1, 0, 2)))
	f.Add(Subject("w:1", 1), sglang(p.Removed(0, 2)))
	f.Add(Subject("ghost", 0), []byte("x"))
	f.Add("infera.kv.events.x", []byte{})
	f.Fuzz(func(t *testing.T, subject string, data []byte) {
		v := newView(t, Config{HoldMessages: 2, HoldBytes: 4096, HoldWorkers: 1, HoldTotal: 4096})
		v.set(worker("w:1", "1"))
		v.sub.reconcile(v.store.Snapshot(), true)
		for i := range 3 {
			v.sub.take(t.Context(), arrival{subject: subject, data: data, stamp: time.Now().Add(time.Duration(i))})
		}
		v.set(worker("w:1", "2"), worker("ghost", "1"))
		v.sub.reconcile(v.store.Snapshot(), false)
		held := 0
		for _, p := range v.sub.peers {
			held += p.held.bytes
		}
		if held != v.sub.held || held > 4096 || v.sub.unknown > 1 {
			t.Errorf("%d bytes held, counted as %d; %d unknown workers", held, v.sub.held, v.sub.unknown)
		}
	})
}

func TestConfigFaultsAreAllReported(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the zero value stands for the defaults: %v", err)
	}
	bad := Config{
		Broker: broker.Config{Server: "nats://u:secret@h:port", Cert: "c"}, Lead: -1, HoldBytes: -1,
	}
	err := bad.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"not a URL", "Lead", "HoldBytes", "certificate"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v\n\tdoes not say %q", err, part)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the password is in the error: %v", err)
	}
	if _, err := New(bad, nil, nil, nil); err == nil {
		t.Error("New takes it")
	}
}

func TestHoldDropsTheOldest(t *testing.T) {
	at := func(i int) time.Time { return time.Unix(int64(i), 0) }
	var h hold
	for i := range 5 {
		h.add(message{stamp: at(i), data: make([]byte, 4)}, 3, 1<<20)
	}
	if len(h.list) != 3 || !h.list[0].stamp.Equal(at(2)) || h.bytes != 3*(4+overhead) {
		t.Errorf("%d messages from %v, %d bytes", len(h.list), h.list[0].stamp, h.bytes)
	}
	if h.whole(at(1)) || !h.whole(at(2)) {
		t.Error("what was dropped up to 1 is missing from 1 on, and not from 2 on")
	}
	if n := h.add(message{stamp: at(9), data: make([]byte, 1000)}, 3, 500); n != 4 || len(h.list) != 0 || h.bytes != 0 {
		t.Errorf("a message that is too large: %d dropped, %d left", n, len(h.list))
	}
	h.add(message{stamp: at(10)}, 3, 500)
	h.prune(at(11))
	if len(h.list) != 0 || h.bytes != 0 || !h.whole(at(10)) {
		t.Error("pruning leaves something, or counts as a loss")
	}
}
