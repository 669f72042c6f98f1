package bench

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheIndexBenchMeasuresEveryFigureOnASyntheticTrace(t *testing.T) {
	var out bytes.Buffer
	args := []string{"--requests", "60", "--workers", "4", "--churn-ops", "20000"}
	if err := Index(t.Context(), args, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	var res map[string]float64
	if err := json.Unmarshal(out.Bytes(), &res); err != nil {
		t.Fatalf("output %q: %v", out.String(), err)
	}
	for _, key := range []string{"sum", "p50_us", "p99_us", "ingest_mblocks_s", "p99_us_under_writer", "decode_apply_mblocks_s", "remove_mblocks_s", "writer_mblocks_s", "hash_us"} {
		if res[key] <= 0 {
			t.Errorf("%s is %v, want more than 0", key, res[key])
		}
	}
	for _, key := range []string{"bytes_per_add", "churn_drift_percent", "allocs"} {
		if _, ok := res[key]; !ok {
			t.Errorf("%s is missing", key)
		}
	}
}

func TestTheIndexBenchRefusesWhatItCannotMeasure(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.jsonl")
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	for path, text := range map[string]string{empty: "\n{}"[1:] + "\n", bad: "{\"hash_ids\": [1]}\n{\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a trace that is not there":  {[]string{"--trace", empty + "x"}, "no such file"},
		"a trace without requests":   {[]string{"--trace", empty}, "no request with hash_ids"},
		"a trace that is not JSON":   {[]string{"--trace", bad}, "request 2"},
		"no worker":                  {[]string{"--workers", "0"}, "must be positive"},
		"a flag that does not exist": {[]string{"--wrokers", "0"}, "wrokers"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := Index(t.Context(), c.args, &out, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if out.Len() != 0 {
				t.Errorf("printed %q in spite of the error", out.String())
			}
		})
	}
}

func TestTheNaiveCountFindsSharedBeginnings(t *testing.T) {
	reqs := indexTrace{{0, 1, 2}, {0, 3}, {0, 1, 4}}
	// Worker 0 holds requests 0 and 2, worker 1 request 1.
	want := int64((3 + 1) + (1 + 2) + (3 + 1))
	if got := naiveSum(reqs, 2); got != want*blocksPerID {
		t.Errorf("sum %d, want %d", got, want*blocksPerID)
	}
}
