package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"pointsman/reports"
)

// ErrReport means that bytes are no load report of this version.
var ErrReport = errors.New("not a load report")

// Subjects of load reports on a broker: one for each forwarder, below
// ReportPrefix, and one on which pickers say that they live.
const (
	ReportPrefix = "infera.load."
	HelloSubject = "infera.hello"
)

// Bounds of a report.
const (
	reportVersion = 1
	// MaxReport is the most bytes of one report: that of a forwarder with 4,096
	// requests that have just ended.
	MaxReport     = 4 << 20
	maxReportBeat = 10 * time.Minute
	maxReportLoad = 1 << 40
	maxReportedID = 512 // bytes of a worker's
)

// The report is JSON: short keys, loads as arrays, times in milliseconds.
type reportJSON struct {
	Version int          `json:"v"`
	Source  string       `json:"from"`
	Seq     uint64       `json:"seq"`
	Beat    int64        `json:"beat_ms"`
	Full    bool         `json:"full,omitempty"`
	Workers []workerJSON `json:"workers,omitempty"`
	Sent    []sentJSON   `json:"sent,omitempty"`
	First   []refJSON    `json:"first,omitempty"`
	Done    []doneJSON   `json:"done,omitempty"`
	Pickers []string     `json:"pickers,omitempty"`
}

// loadJSON is requests, waiting, prefill tokens, context tokens, active tokens.
type loadJSON [5]int

type workerJSON struct {
	ID    string              `json:"id"`
	Rank  *int                `json:"rank,omitempty"`
	Total loadJSON            `json:"load"`
	By    map[string]loadJSON `json:"by,omitempty"`
	Work  *[2]float64         `json:"work,omitempty"` // token-equivalents, milliseconds
}

type refJSON struct {
	Picker string `json:"p"`
	Pick   uint64 `json:"n"`
}

type sentJSON struct {
	refJSON

	Worker string `json:"id"`
	Rank   *int   `json:"rank,omitempty"`
	Size   int    `json:"size"`
	Blocks int    `json:"blocks"`
	Marks  string `json:"marks"`
}

type doneJSON struct {
	refJSON

	ID      string `json:"id,omitempty"`
	Receipt string `json:"tries,omitempty"`
	Moved   bool   `json:"moved,omitempty"`
	Status  int    `json:"status,omitempty"`
	First   int64  `json:"first_ms,omitempty"`
	Took    int64  `json:"took_ms"`
	Prompt  *int   `json:"prompt,omitempty"`
	Cached  *int   `json:"cached,omitempty"`
	Output  *int   `json:"output,omitempty"`
}

// AppendReport appends r's bytes, which hold no line break, at most that many of them:
// what nobody would take in helps nobody. Where r is longer the oldest news are left
// out, of whatever kind there is most, and never the load of workers. Its error is an
// [ErrReport] when that alone is too long.
func AppendReport(dst []byte, r *reports.Report, most int) ([]byte, error) {
	for cut := *r; ; {
		out, err := appendReport(dst, &cut)
		if err != nil || len(out)-len(dst) <= most {
			return out, err
		}
		switch n := max(len(cut.Done), len(cut.Sent), len(cut.First)); {
		case n == 0:
			return dst, fmt.Errorf("%w: %d bytes of %d workers' load, of at most %d", ErrReport, len(out)-len(dst), len(r.Workers), most)
		case n == len(cut.Done):
			cut.Done = cut.Done[(n+1)/2:]
		case n == len(cut.Sent):
			cut.Sent = cut.Sent[(n+1)/2:]
		default:
			cut.First = cut.First[(n+1)/2:]
		}
	}
}

func appendReport(dst []byte, r *reports.Report) ([]byte, error) {
	j := reportJSON{
		Version: reportVersion, Source: r.Source, Seq: r.Seq, Beat: r.Beat.Milliseconds(), Full: r.Full, Pickers: r.Pickers,
		Workers: make([]workerJSON, 0, len(r.Workers)), First: make([]refJSON, 0, len(r.First)), Done: make([]doneJSON, 0, len(r.Done)),
	}
	for i := range r.Workers {
		w := &r.Workers[i]
		out := workerJSON{ID: w.ID, Total: loadOf(w.Total)}
		if w.Rank >= 0 {
			out.Rank = &w.Rank
		}
		if len(w.ByPicker) > 0 {
			out.By = make(map[string]loadJSON, len(w.ByPicker))
			for id, l := range w.ByPicker {
				out.By[id] = loadOf(l)
			}
		}
		if w.Work.Millis > 0 {
			out.Work = &[2]float64{math.Round(w.Work.Tokens), math.Round(w.Work.Millis*1000) / 1000}
		}
		j.Workers = append(j.Workers, out)
	}
	for i := range r.Sent {
		s := &r.Sent[i]
		out := sentJSON{refJSON: refJSON(s.Ref), Worker: s.Worker, Size: s.Trail.Size, Blocks: s.Trail.Blocks, Marks: s.Trail.Marks()}
		if s.Rank >= 0 {
			out.Rank = &s.Rank
		}
		j.Sent = append(j.Sent, out)
	}
	for _, ref := range r.First {
		j.First = append(j.First, refJSON(ref))
	}
	for i := range r.Done {
		j.Done = append(j.Done, doneOf(&r.Done[i]))
	}
	b, err := json.Marshal(&j)
	if err != nil {
		return dst, fmt.Errorf("encode load report: %w", err)
	}
	return append(dst, b...), nil
}

func loadOf(l reports.Load) loadJSON {
	return loadJSON{l.Requests, l.Waiting, l.PrefillTokens, l.ContextTokens, l.ActiveTokens}
}

func doneOf(d *reports.Done) doneJSON {
	out := doneJSON{
		refJSON: refJSON(d.Ref), ID: d.RequestID, Receipt: d.Receipt, Moved: d.Moved, Status: d.Status,
		First: d.First.Milliseconds(), Took: d.Took.Milliseconds(),
	}
	for _, f := range [...]struct {
		to   **int
		from *int
	}{{&out.Prompt, &d.Prompt}, {&out.Cached, &d.Cached}, {&out.Output, &d.Output}} {
		if *f.from >= 0 {
			*f.to = f.from
		}
	}
	if d.First > 0 && out.First == 0 {
		out.First = 1
	}
	return out
}

// DecodeReport reads a report. Its error is an [ErrReport]. What a later version
// adds is skipped; numbers out of range are refused, for one bad number would
// spoil the sums of all forwarders.
func DecodeReport(b []byte) (*reports.Report, error) {
	if len(b) > MaxReport {
		return nil, fmt.Errorf("%w: %d bytes, of at most %d", ErrReport, len(b), MaxReport)
	}
	var j reportJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReport, err)
	}
	beat := time.Duration(j.Beat) * time.Millisecond
	switch {
	case j.Version != reportVersion:
		return nil, fmt.Errorf("%w: version %d, of %d", ErrReport, j.Version, reportVersion)
	case !reports.ValidID(j.Source) || j.Seq == 0:
		return nil, fmt.Errorf("%w: source %.40q, number %d", ErrReport, j.Source, j.Seq)
	case j.Beat <= 0 || j.Beat > maxReportBeat.Milliseconds():
		return nil, fmt.Errorf("%w: heartbeat of %d ms", ErrReport, j.Beat)
	}
	r := &reports.Report{Source: j.Source, Seq: j.Seq, Beat: beat, Full: j.Full}
	for i := range j.Workers {
		w, err := reportedWorker(&j.Workers[i])
		if err != nil {
			return nil, err
		}
		r.Workers = append(r.Workers, w)
	}
	for i := range j.Sent {
		s := &j.Sent[i]
		sent := reports.Sent{Ref: reports.Ref(s.refJSON), Worker: s.Worker, Rank: -1, Trail: reports.ParseTrail(s.Size, s.Blocks, s.Marks)}
		if s.Rank != nil {
			sent.Rank = max(-1, *s.Rank)
		}
		if sent.Trail.N > 0 && reports.ValidID(sent.Picker) {
			r.Sent = append(r.Sent, sent)
		}
	}
	for _, ref := range j.First {
		r.First = append(r.First, reports.Ref(ref))
	}
	for i := range j.Done {
		r.Done = append(r.Done, doneFrom(&j.Done[i]))
	}
	for _, id := range j.Pickers {
		if reports.ValidID(id) {
			r.Pickers = append(r.Pickers, id)
		}
	}
	return r, nil
}

func reportedWorker(j *workerJSON) (reports.Worker, error) {
	w := reports.Worker{ID: j.ID, Rank: -1}
	if j.Rank != nil {
		w.Rank = *j.Rank
	}
	ok := j.ID != "" && len(j.ID) <= maxReportedID && (j.Rank == nil || w.Rank >= 0)
	if w.Total, ok = loadFrom(j.Total, ok); len(j.By) > 0 {
		w.ByPicker = make(map[string]reports.Load, len(j.By))
		for id, l := range j.By {
			w.ByPicker[id], ok = loadFrom(l, ok)
			for i := range l { // else what is left for the others would be below nothing
				ok = ok && l[i] <= j.Total[i]
			}
		}
	}
	if j.Work != nil {
		w.Work = reports.Work{Tokens: j.Work[0], Millis: j.Work[1]}
		ok = ok && w.Work.Tokens >= 0 && w.Work.Millis >= 0 && w.Work.Tokens < maxReportLoad && w.Work.Millis < maxReportLoad
	}
	if !ok {
		return w, fmt.Errorf("%w: worker %.80q: numbers out of range", ErrReport, j.ID)
	}
	return w, nil
}

func loadFrom(j loadJSON, ok bool) (reports.Load, bool) {
	for _, n := range j {
		ok = ok && n >= 0 && n < maxReportLoad
	}
	ok = ok && j[1] <= j[0]
	return reports.Load{Requests: j[0], Waiting: j[1], PrefillTokens: j[2], ContextTokens: j[3], ActiveTokens: j[4]}, ok
}

func doneFrom(j *doneJSON) reports.Done {
	const most = int64(24 * time.Hour / time.Millisecond)
	d := reports.Done{
		Ref: reports.Ref(j.refJSON), RequestID: j.ID, Receipt: j.Receipt, Moved: j.Moved, Status: j.Status,
		First:  time.Duration(min(max(j.First, 0), most)) * time.Millisecond,
		Took:   time.Duration(min(max(j.Took, 0), most)) * time.Millisecond,
		Prompt: -1, Cached: -1, Output: -1,
	}
	for _, f := range [...]struct {
		to   *int
		from *int
	}{{&d.Prompt, j.Prompt}, {&d.Cached, j.Cached}, {&d.Output, j.Output}} {
		if f.from != nil && *f.from >= 0 && *f.from < maxReportLoad {
			*f.to = *f.from
		}
	}
	return d
}
