package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pointsman/plugins/discovery/static"
)

// TestBeExtProcChild is no test: started by TestExtProcMeasures with the hidden
// flag, this binary becomes one of the measured servers.
func TestBeExtProcChild(t *testing.T) {
	if flag.NArg() == 0 || flag.Arg(0) != childFlag {
		t.Skip("only as a child of another test")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := ExtProc(ctx, flag.Args(), os.Stdout, os.Stderr); err != nil {
		t.Fatal(err)
	}
}

func TestExtProcMeasures(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	var log bytes.Buffer
	// Heap objects are counted exactly in the program that make builds. In this
	// one, under the race detector, sync.Pool drops a part of what it is given.
	epp, slack := "self", 1.5
	if dir := os.Getenv("POINTSMAN_BIN"); dir != "" {
		epp, slack = filepath.Join(dir, "epp"), 1
	}
	cfg := extProcConfig{epp: epp, rounds: 1, busy: 60 * time.Millisecond, only: 8, least: 300, most: 10_000}
	self := []string{"-test.run=^TestBeExtProcChild$", "--", childFlag}
	result, err := measureExtProc(t.Context(), cfg, self, t.TempDir(), &sharedWriter{w: &log})
	if err != nil && strings.Contains(err.Error(), "too busy") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	if len(result.Rows) != 2 {
		t.Fatalf("%d rows, want two", len(result.Rows))
	}
	for i, row := range result.Rows {
		if row.Workers != 8 || row.C != 4 || row.PromptBytes != []int{1024, 102400}[i] {
			t.Errorf("row %d is of %+v", i, row)
		}
		if row.RPS <= 0 || row.P50 <= 0 || row.P99 < row.P50 || row.CPU <= 0 || row.VsReference <= 0 {
			t.Errorf("row %d was not measured: %+v", i, row)
		}
		if most := 95 * slack; row.Allocs < 1 || row.Allocs > most {
			t.Errorf("row %d: %.1f allocations per request, want %.1f at most", i, row.Allocs, most)
		}
	}
	if result.ChunkAllocs > 12*slack {
		t.Errorf("%.1f allocations per response chunk", result.ChunkAllocs)
	}
	line, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"rows", "workers", "prompt_bytes", "c", "rps", "p50_ms", "p99_ms", "cpu_ms", "allocs", "vs_reference", "chunk_us"} {
		if !strings.Contains(string(line), `"`+key+`"`) {
			t.Errorf("the result has no %s: %s", key, line)
		}
	}
}

func TestExtProcFleetFileIsReadByTheStaticBackend(t *testing.T) {
	for _, n := range []int{8, 200} {
		workers, err := static.Parse([]byte(fleetFile(n)))
		if err != nil {
			t.Fatal(err)
		}
		if len(workers) != n || workers[0].Model != extProcModel || workers[0].BlockSize != 16 {
			t.Errorf("%d workers: read %d, the first is %+v", n, len(workers), workers[0])
		}
	}
}

func TestExtProcBodiesShareTheirGroupsPrefix(t *testing.T) {
	bodies := extProcBodies(largePrompt)
	if len(bodies) != bodyVariants {
		t.Fatalf("%d bodies", len(bodies))
	}
	whole := func(i int) string {
		var b strings.Builder
		for _, c := range bodies[i].chunks {
			b.Write(c.GetRequestBody().GetBody())
		}
		return b.String()
	}
	a, b, c := whole(0), whole(bodyGroups), whole(1)
	if common(a, b) < largePrompt*sharedPercent/100 || common(a, c) > 200 || a == b {
		t.Errorf("same group shares %d bytes, others %d", common(a, b), common(a, c))
	}
	if !json.Valid([]byte(a)) || bodies[0].size != len(a) {
		t.Error("a body is no JSON, or its size is wrong")
	}
}

func common(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func TestExtProcFlags(t *testing.T) {
	var log bytes.Buffer
	cfg, err := extProcFlags([]string{"--epp", "x", "--rounds", "2"}, &log)
	if err != nil || cfg.epp != "x" || cfg.rounds != 2 {
		t.Errorf("%+v, %v", cfg, err)
	}
	for _, args := range [][]string{{"--rounds", "0"}, {"--busy", "1ms"}, {"--what"}} {
		if _, err := extProcFlags(args, &log); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
	if err := ExtProc(t.Context(), []string{"--epp", "/does/not/exist", "--rounds", "0"}, &log, &log); err == nil {
		t.Error("a measurement that cannot be made is no error")
	}
	if got := childArgs(nil); !slices.Contains(got, childFlag) {
		t.Errorf("child arguments %q", got)
	}
}

func TestExtProcServersThatDoNotServeAreAnError(t *testing.T) {
	var log bytes.Buffer
	for name, binary := range map[string]string{
		"no such binary":          "/does/not/exist",
		"a binary that ends":      "/bin/false",
		"a binary that is no EPP": "/bin/echo",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := startEPP(t.Context(), binary, nil, t.TempDir(), 8, "", &sharedWriter{w: &log}); err == nil {
				t.Error("it is taken for a server")
			}
		})
	}
	if _, err := startReference(t.Context(), []string{"-test.run=^$", "--"}, &sharedWriter{w: &log}); err == nil {
		t.Error("a child that says nothing is taken for a server")
	}
}

// The reference must do its job, else the ratio says nothing.
func TestExtProcReferenceAnswersAsAGatewayExpects(t *testing.T) {
	var log bytes.Buffer
	self := []string{"-test.run=^TestBeExtProcChild$", "--", childFlag}
	s, err := startReference(t.Context(), self, &sharedWriter{w: &log})
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	for _, size := range []int{smallPrompt, largePrompt} {
		client, failure := dialExtProc(s.addr, 3)
		if failure != nil {
			t.Fatal(failure)
		}
		client.bodies = extProcBodies(size)
		took, latencies, failure := client.run(t.Context(), 20)
		client.close()
		if failure != nil || took <= 0 || len(latencies) != 20 || slices.Min(latencies) <= 0 {
			t.Errorf("%d bytes: took %v, %v, %v", size, took, latencies, failure)
		}
	}
	before, err := s.allocations(t.Context())
	if err != nil || before <= 0 {
		t.Errorf("allocations %v, %v", before, err)
	}
}

func TestExtProcClientNoticesWrongAnswers(t *testing.T) {
	bodies := extProcBodies(smallPrompt)
	for i := range bodies {
		bodies[i].size++ // so that what comes back is not what was sent
	}
	var log bytes.Buffer
	s, err := startReference(t.Context(), []string{"-test.run=^TestBeExtProcChild$", "--", childFlag}, &sharedWriter{w: &log})
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	client, err := dialExtProc(s.addr, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer client.close()
	client.bodies = bodies
	if _, _, err := client.run(t.Context(), 5); err == nil || !strings.Contains(err.Error(), "came back") {
		t.Errorf("a body of the wrong size: %v", err)
	}
}

func TestExtProcRatioComparesWithinARound(t *testing.T) {
	mine := []sample{{cpu: 1}, {cpu: 2}, {cpu: 30}}
	theirs := []sample{{cpu: 2}, {cpu: 4}, {cpu: 60}} // the third round was slow for both
	if got := ratio(mine, theirs); got != 0.5 {
		t.Errorf("ratio %v, want 0.5", got)
	}
	if got := medianOf(mine, cpuOf); got != 2 {
		t.Errorf("median %v, want 2", got)
	}
}

func TestExactBodiesShareFourFifthsAndEndInTextNeverSeen(t *testing.T) {
	t.Chdir("../..")
	for _, size := range []int{smallPrompt, largePrompt} {
		source, err := newExactBodies(size)
		if err != nil {
			t.Fatal(err)
		}
		raw := func(b *extProcBody) string {
			var all []byte
			for _, c := range b.chunks {
				all = append(all, c.GetRequestBody().GetBody()...)
			}
			return string(all)
		}
		bodies := append(source.take(bodyGroups), source.take(1)...)
		first, again := raw(&bodies[0]), raw(&bodies[bodyGroups])
		same := 0
		for same < min(len(first), len(again)) && first[same] == again[same] {
			same++
		}
		_, known, _ := strings.Cut(first[:same], `"messages"`)
		if share := float64(len(known)) / float64(size); share < 0.75 || share > 1 {
			t.Errorf("%d bytes: %.2f of it is known", size, share)
		}
		if first == again || raw(&bodies[0]) == raw(&bodies[1]) {
			t.Errorf("%d bytes: a body is there twice", size)
		}
	}
}
