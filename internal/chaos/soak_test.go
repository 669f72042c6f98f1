package chaos

import "testing"

func TestGoroutinesOfConnectionsAreNotCounted(t *testing.T) {
	const profile = "goroutine profile: total 14\n" +
		"10 @ 0x48dc4e 0x469ea5\n#\t0x839385\tnet/http.(*persistConn).writeLoop+0xe5\tnet/http/transport.go:2652\n\n" +
		"3 @ 0x1 0x2\n# labels: {\"a\":\"b\"}\n#\t0x1\tpointsman/picker.(*Picker).Run+0x1\tpicker/picker.go:1\n\n" +
		"1 @ 0x3\n#\t0x3\tmain.main+0x1\tcmd/epp/main.go:1\n"
	if n := ownGoroutines(profile); n != 4 {
		t.Errorf("%d goroutines, want 4", n)
	}
}

func TestGrowthIsOfTheSameProcessAlone(t *testing.T) {
	base := map[string]footprint{"a": {1, 10, 20, 5}, "b": {2, 10, 20, 5}}
	var r SoakReport
	r.compare(base, map[string]footprint{"a": {1, 13, 21, 6}, "b": {3, 90, 90, 90}})
	if r.GoroutineGrowth != 3 || r.DescriptorGrowth != 1 || r.HeapGrowth != 1 {
		t.Errorf("%+v", r)
	}
	if r.Failed() == nil {
		t.Error("three goroutines more are no leak")
	}
}
