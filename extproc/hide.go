package extproc

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// answerModeOverride is ProcessingResponse.mode_override.
const answerModeOverride protowire.Number = 9

// overrides is what is known of whether gateways heed a mode_override. Envoy does
// when its filter says allow_mode_override and its modes are not
// FULL_DUPLEX_STREAMED; nothing on a stream tells which. It is tried, and given up
// when body chunks come all the same.
type overrides struct {
	ignored atomic.Int32 // in a row
	said    atomic.Bool  // that it was given up
}

// maxIgnored is how many streams in a row must show their bodies in spite of an
// override, until no more is asked for.
const maxIgnored = 8

// hideable reports whether the gateway may be asked to keep the response's body from
// x: its mode can be overridden, and a forwarder will report how the request ends.
func (x *exchange) hideable() bool {
	switch x.responseMode {
	case modeStreamed, modeBuffered, modeBufferedPartial:
	case modeNone, modeFullDuplex:
		return false
	}
	return x.cfg.ModeOverride && x.s.deps.PickerID != "" && !x.bypasses() && x.s.overrides.ignored.Load() < maxIgnored
}

// hide returns the fields of an answer to response headers that ask for
// response_body_mode NONE, and what the request's body has had; nil for nothing.
func (x *exchange) hide(m *message) []byte {
	if !x.prepared || m.eos {
		return nil
	}
	x.asked = true
	return x.s.asm.hidden[x.requestMode]
}

// shown notes that a body comes although it was asked to be hidden.
func (x *exchange) shown() {
	if !x.asked {
		return
	}
	x.asked = false
	x.s.metrics.overrides.WithLabelValues("ignored").Inc()
	if x.s.overrides.ignored.Add(1) >= maxIgnored && !x.s.overrides.said.Swap(true) {
		x.s.log.LogAttrs(context.Background(), slog.LevelInfo,
			"the gateway shows response bodies although it was asked not to; set allow_mode_override, or response_body_mode NONE, to take this program off the path of tokens")
	}
}

// conceal makes x, whose stream has ended, one whose response's body was not to be
// seen, if the gateway has done as it was asked.
func (x *exchange) conceal() {
	if !x.asked || x.responded || x.refused != 0 {
		return
	}
	x.s.overrides.ignored.Store(0)
	x.s.metrics.overrides.WithLabelValues("heeded").Inc()
	x.responseMode = modeNone
	x.progress()
}

// hiddenModes are the overrides by the mode of the request's body. The request's
// mode is repeated, since an override is of all modes.
func hiddenModes() (out [modeFullDuplex + 1][]byte) {
	for mode := range out {
		var inner []byte
		if mode != 0 {
			inner = protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), uint64(mode))
		}
		out[mode] = protowire.AppendBytes(protowire.AppendTag(nil, answerModeOverride, protowire.BytesType), inner)
	}
	return out
}

// with returns an answer with further fields behind its own.
func (a answer) with(fields []byte) answer {
	if len(fields) == 0 {
		return a
	}
	return answer{append(slices.Clip(a.data), mem.SliceBuffer(fields))}
}
