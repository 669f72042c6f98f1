package forward

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pointsman/fleet"
)

func TestAnEditLeavesEverythingElseAsItWas(t *testing.T) {
	set := []Field{{"a", []byte("1")}, {"gone", nil}, {"new", []byte(`{"x":[]}`)}}
	tests := []struct{ name, in, want string }{
		{"an empty object", `{}`, `{"a":1,"new":{"x":[]}}`},
		{"white space and unknown members", " {\n \"z\" : 1.0e5 ,\"a\" : \"}\" ,\"u\":\"\\u00e9\\\"\"\n}\n", " {\"z\" : 1.0e5,\"a\" : 1,\"u\":\"\\u00e9\\\"\",\"new\":{\"x\":[]}}\n"},
		{"a member to take out first", `{"gone":[{"a":"]"}],"b":null}`, `{"b":null,"a":1,"new":{"x":[]}}`},
		{"a member to take out last", `{"b":{},"gone":-1}`, `{"b":{},"a":1,"new":{"x":[]}}`},
		{"members given twice", `{"a":2,"b":1,"a":3,"gone":1,"gone":2}`, `{"a":1,"b":1,"new":{"x":[]}}`},
		{"an escaped name", `{"\u0061":2,"\"":1}`, `{"\u0061":1,"\"":1,"new":{"x":[]}}`},
		{"internal fields", `{"_infera_direct_worker":"w","b":1}`, `{"b":1,"a":1,"new":{"x":[]}}`},
	}
	for _, tc := range tests {
		o, err := ParseObject([]byte(tc.in))
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if got := string(o.With(set...)); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, got, tc.want)
		}
	}
	for _, bad := range []string{"", "null", "[]", `{"a"`, `{"a":`, `{"a":1`, `{"a":"x`, `{"a":[1}`, `{"a":,}`, `{a:1}`, `{"a":1,}`, `{"a":"\\\"}`} {
		if o, err := ParseObject([]byte(bad)); err == nil {
			t.Errorf("%q was taken: %+v", bad, o)
		}
	}
}

func TestObjectGetters(t *testing.T) {
	o, err := ParseObject([]byte(`{"n":7,"s":"\u00e9","f":1.5,"o":{"n":1},"n":8,"neg":-3}`))
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := o.Int("n"); n != 8 || !ok {
		t.Errorf("the last of two is %d, %v", n, ok)
	}
	if _, ok := o.Int("f"); ok {
		t.Error("1.5 is no whole number")
	}
	if s, ok := o.String("s"); s != "é" || !ok {
		t.Errorf("string %q, %v", s, ok)
	}
	if _, ok := o.String("n"); ok {
		t.Error("a number is no string")
	}
	if in, ok := o.Object("o"); !ok || !in.Has("n") || in.Has("s") {
		t.Error("the object's members are wrong")
	}
	if _, ok := o.Object("none"); ok || o.Has("none") || o.Get("none") != nil {
		t.Error("a member that is not there was found")
	}
}

// FuzzObject holds the editor to encoding/json: valid objects are found whole, and
// an edit changes nothing but what it should.
func FuzzObject(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a":1}`, `{"max_tokens":5,"messages":[{"role":"user","content":"\"}"}]}`, `{"a":{"b":[1,2,{"c":"]"}]},"a":null}`, `{"\u0061":"x"}`, ` { "a" : [ ] } `} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		o, err := ParseObject(raw)
		var want map[string]json.RawMessage
		valid := json.Unmarshal(raw, &want) == nil && want != nil
		if valid && err != nil {
			t.Fatalf("a valid object was refused: %q", raw)
		}
		if !valid || bytes.ContainsRune(raw, '\uFFFD') || !json.Valid(raw) {
			return
		}
		got := o.With(Field{"max_tokens", []byte("1")}, Field{"stream", nil})
		var have map[string]any
		if err := json.Unmarshal(got, &have); err != nil {
			t.Fatalf("%q became %q: %v", raw, got, err)
		}
		var ref map[string]any
		_ = json.Unmarshal(raw, &ref)
		for name := range ref {
			if strings.HasPrefix(name, "_infera_") || name == "stream" {
				delete(ref, name)
			}
		}
		ref["max_tokens"] = 1.0
		if !reflect.DeepEqual(have, ref) && bytes.Equal(bytes.ToValidUTF8(raw, nil), raw) {
			t.Fatalf("%q became %q", raw, got)
		}
	})
}

func TestTheRoomIsOnThePrefillWorkersRank(t *testing.T) {
	for _, random := range [][40]byte{{}, {0: 0xff, 1: 0xff, 2: 0xff, 3: 0xff, 4: 0xff, 5: 0xff, 6: 0xff, 7: 0xff}, {0: 0x12, 7: 0x9}} {
		for size := range 9 {
			for rank := -1; rank < size; rank++ {
				for _, external := range []bool{false, true} {
					w := &fleet.Worker{DPSize: size, DPRank: -1}
					leg := rank
					if external {
						w.DPRank, leg = rank, -1
					}
					p := newPair(w, w, leg, -1, random)
					if p.Room >= 1<<63 {
						t.Fatalf("room %d", p.Room)
					}
					if rank >= 0 && p.Room%uint64(size) != uint64(rank) {
						t.Errorf("room %d of %d ranks is not on %d", p.Room, size, rank)
					}
				}
			}
		}
	}
}

func TestUUIDsAreOfVersion4(t *testing.T) {
	p := newPair(&fleet.Worker{DPRank: -1}, nil, -1, -1, [40]byte{8: 0xff, 14: 0xff, 16: 0xff, 24: 0x01, 39: 0x02})
	if got := p.UUID(0, true); got != "ff000000-0000-4f00-bf00-000000000000" {
		t.Error(got)
	}
	if got := p.UUID(1, false); got != "01000000000040008000000000000002" {
		t.Error(got)
	}
}
