package wire

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"pointsman/reports"
)

// sample is a report with everything that one can hold.
func sample() *reports.Report {
	load := reports.Load{Requests: 3, Waiting: 1, PrefillTokens: 700, ContextTokens: 2400, ActiveTokens: 2000}
	return &reports.Report{
		Source: "pod-7.a1b2c3", Seq: 42, Beat: 2 * time.Second, Full: true,
		Workers: []reports.Worker{
			{ID: "10.0.0.1:30000", Rank: -1, Total: load, ByPicker: map[string]reports.Load{"epp-0.1": load}, Work: reports.Work{Tokens: 16000, Millis: 1000.5}},
			{ID: "10.0.0.2:30000", Rank: 0},
		},
		Sent: []reports.Sent{
			{Ref: reports.Ref{Picker: "epp-0.1", Pick: 11}, Worker: "10.0.0.2:30000", Rank: 0, Trail: reports.Trail{Size: 16, Blocks: 75, N: 2, Hashes: [reports.MaxMarks]uint64{1 << 63, 7}}},
		},
		First: []reports.Ref{{Picker: "epp-0.1", Pick: 9}},
		Done: []reports.Done{
			{Ref: reports.Ref{Picker: "epp-0.1", Pick: 7}, RequestID: "r-1", Receipt: "m1@10.0.0.1:30000;ok", Status: 200, First: 120 * time.Millisecond, Took: time.Second, Prompt: 1000, Cached: 0, Output: 12},
			{Ref: reports.Ref{Picker: "epp-1.9", Pick: 8}, Moved: true, Prompt: -1, Cached: -1, Output: -1},
		},
		Pickers: []string{"epp-0.1"},
	}
}

func TestLoadReportBytes(t *testing.T) {
	got, err := AppendReport(nil, sample(), MaxReport)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/report.json")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != strings.TrimSpace(string(want)) {
		t.Errorf("bytes differ from testdata/report.json:\n%s", got)
	}
	back, err := DecodeReport(got)
	if err != nil || !reflect.DeepEqual(back, sample()) {
		t.Errorf("came back as %+v, %v", back, err)
	}
}

func TestBadLoadReportsAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":             `{`,
		"another version":     `{"v":2,"from":"a","seq":1,"beat_ms":1000}`,
		"no source":           `{"v":1,"seq":1,"beat_ms":1000}`,
		"a source with space": `{"v":1,"from":"a b","seq":1,"beat_ms":1000}`,
		"no number":           `{"v":1,"from":"a","beat_ms":1000}`,
		"no heartbeat":        `{"v":1,"from":"a","seq":1}`,
		"a heartbeat of days": `{"v":1,"from":"a","seq":1,"beat_ms":99999999999}`,
		"negative load":       `{"v":1,"from":"a","seq":1,"beat_ms":1000,"workers":[{"id":"w","load":[-1,0,0,0,0]}]}`,
		"a picker's too":      `{"v":1,"from":"a","seq":1,"beat_ms":1000,"workers":[{"id":"w","load":[1,0,0,0,0],"by":{"p":[0,0,0,-5,0]}}]}`,
		"a part above a sum":  `{"v":1,"from":"a","seq":1,"beat_ms":1000,"workers":[{"id":"w","load":[1,0,0,0,0],"by":{"p":[5,0,0,0,0]}}]}`,
		"more wait than are":  `{"v":1,"from":"a","seq":1,"beat_ms":1000,"workers":[{"id":"w","load":[1,2,0,0,0]}]}`,
		"endless load":        `{"v":1,"from":"a","seq":1,"beat_ms":1000,"workers":[{"id":"w","load":[1,0,9999999999999,0,0]}]}`,
		"negative work":       `{"v":1,"from":"a","seq":1,"beat_ms":1000,"workers":[{"id":"w","load":[1,0,0,0,0],"work":[-1,1]}]}`,
		"a nameless worker":   `{"v":1,"from":"a","seq":1,"beat_ms":1000,"workers":[{"load":[1,0,0,0,0]}]}`,
		"a name of a page":    `{"v":1,"from":"a","seq":1,"beat_ms":1000,"workers":[{"id":"` + strings.Repeat("w", 600) + `","load":[1,0,0,0,0]}]}`,
		"a negative rank":     `{"v":1,"from":"a","seq":1,"beat_ms":1000,"workers":[{"id":"w","rank":-2,"load":[1,0,0,0,0]}]}`,
		"too many bytes":      strings.Repeat(" ", MaxReport+1),
	} {
		if _, err := DecodeReport([]byte(text)); !errors.Is(err, ErrReport) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A busy forwarder's news of ten seconds can be more than a broker takes in a message;
// then its load and the latest news must get through all the same.
func TestALoadReportFitsWhatCarriesIt(t *testing.T) {
	r := sample()
	const news = 4096
	for i := range news {
		ref := reports.Ref{Picker: "epp-0.1", Pick: uint64(i + 1)}
		r.Done = append(r.Done, reports.Done{Ref: ref, RequestID: strings.Repeat("r", 200), Status: 200, Prompt: -1, Cached: -1, Output: -1})
		r.First = append(r.First, ref)
		r.Sent = append(r.Sent, reports.Sent{Ref: ref, Worker: "10.0.0.2:30000", Trail: r.Sent[0].Trail})
	}
	kept := reports.Report{Done: r.Done, Sent: r.Sent, First: r.First}
	for _, most := range []int{MaxReport, 1 << 20, 64 << 10, 4 << 10} {
		b, err := AppendReport([]byte("before"), r, most)
		if err != nil || len(b)-len("before") > most {
			t.Fatalf("%d bytes of at most %d, %v", len(b), most, err)
		}
		got, err := DecodeReport(b[len("before"):])
		if err != nil || !reflect.DeepEqual(got.Workers, r.Workers) || len(got.Done) == 0 || got.Done[len(got.Done)-1].Pick != news {
			t.Errorf("within %d: %v, %d workers, %d ends", most, err, len(got.Workers), len(got.Done))
		}
	}
	if !reflect.DeepEqual(kept, reports.Report{Done: r.Done, Sent: r.Sent, First: r.First}) {
		t.Error("the report has changed, which others are to get as well")
	}
	if b, err := AppendReport([]byte("before"), r, 100); !errors.Is(err, ErrReport) || string(b) != "before" {
		t.Errorf("workers' load in 100 bytes: %q, %v", b, err)
	}
}

// FuzzReport: what decodes encodes, and decodes to the same again.
func FuzzReport(f *testing.F) {
	if b, err := os.ReadFile("testdata/report.json"); err == nil {
		f.Add(b)
	}
	f.Add([]byte(`{"v":1,"from":"a","seq":1,"beat_ms":1000,"workers":[{"id":"w","load":[2,1,3,4,5]}],"done":[{"p":"x","n":1,"took_ms":-4,"prompt":-1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeReport(b)
		if err != nil {
			if !errors.Is(err, ErrReport) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		out, err := AppendReport(nil, r, 2*MaxReport)
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeReport(out)
		if err != nil {
			t.Fatalf("%v of own bytes %s", err, out)
		}
		once, _ := AppendReport(nil, again, 2*MaxReport)
		if string(once) != string(out) {
			t.Errorf("%s\n%s", out, once)
		}
	})
}
