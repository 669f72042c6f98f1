package nats

import "time"

// message is one of the stream's, not yet decoded.
type message struct {
	rank  int
	stamp time.Time // when the broker took it, by the broker's clock
	data  []byte
}

// overhead is what a held message takes beside its payload.
const overhead = 96

func (m *message) size() int { return len(m.data) + overhead }

// hold keeps a worker's last messages, oldest first. The zero value is empty.
type hold struct {
	list  []message
	bytes int
	lost  time.Time // broker's clock: the newest message that was dropped though it might count; zero for none
}

// add appends m and drops the oldest messages past the bounds.
func (h *hold) add(m message, messages, bytes int) (dropped int) {
	h.list = append(h.list, m)
	h.bytes += m.size()
	for len(h.list) > messages || h.bytes > bytes {
		if len(h.list) == 0 {
			break
		}
		h.lost = h.list[0].stamp
		h.pop()
		dropped++
	}
	return dropped
}

func (h *hold) pop() {
	h.bytes -= h.list[0].size()
	h.list[0] = message{}
	h.list = h.list[1:]
}

// prune drops what is older than since, and so does not count.
func (h *hold) prune(since time.Time) {
	for len(h.list) > 0 && h.list[0].stamp.Before(since) {
		h.pop()
	}
	if len(h.list) == 0 {
		h.list = nil
	}
}

// whole reports whether nothing published from since on was dropped.
func (h *hold) whole(since time.Time) bool { return h.lost.IsZero() || h.lost.Before(since) }
