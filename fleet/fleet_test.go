package fleet

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestNames(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Mixed.String(), "mixed"},
		{Prefill.String(), "prefill"},
		{Decode.String(), "decode"},
		{Role(9).String(), "role(9)"},
		{Active.String(), "active"},
		{Draining.String(), "draining"},
		{Dead.String(), "dead"},
		{Status(9).String(), "status(9)"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestAddressAndDestination(t *testing.T) {
	for _, c := range []struct {
		name                 string
		w                    Worker
		address, destination string
	}{
		{"IPv4", Worker{Host: "10.0.0.1", Port: 30000}, "10.0.0.1:30000", "10.0.0.1:8000"},
		{"IPv6", Worker{Host: "fd00::1", Port: 30000}, "[fd00::1]:30000", "[fd00::1]:8000"},
		{"a forwarder elsewhere", Worker{Host: "h", Port: 1, Endpoint: "f:9"}, "h:1", "f:9"},
	} {
		if got := c.w.Address(); got != c.address {
			t.Errorf("%s: address %q, want %q", c.name, got, c.address)
		}
		if got := c.w.Destination(8000); got != c.destination {
			t.Errorf("%s: destination %q, want %q", c.name, got, c.destination)
		}
	}
}

// Every field is a reason to resubscribe, re-dial or re-score, so Same must see
// each; a field added without it fails here.
func TestSameSeesEveryField(t *testing.T) {
	if !Same(worker("a"), worker("a")) {
		t.Fatal("equal records differ")
	}
	fields := reflect.TypeFor[Worker]()
	for i := range fields.NumField() {
		w := worker("a")
		switch f := reflect.ValueOf(w).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("changed")
		case reflect.Int:
			f.SetInt(77)
		case reflect.Uint8:
			f.SetUint(2)
		case reflect.Slice:
			if f.Type() == reflect.TypeFor[json.RawMessage]() {
				f.SetBytes([]byte("{}"))
			} else if f.Type() == reflect.TypeFor[[]string]() {
				f.Set(reflect.ValueOf([]string{"x"}))
			} else {
				f.Set(reflect.ValueOf([]uint32{1}))
			}
		default:
			t.Fatalf("field %s is of a kind this test does not change", fields.Field(i).Name)
		}
		if Same(worker("a"), w) {
			t.Errorf("a change of %s goes unseen", fields.Field(i).Name)
		}
	}
}
