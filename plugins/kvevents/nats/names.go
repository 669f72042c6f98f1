package nats

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tinylib/msgp/msgp"

	"pointsman/wire"
)

// Names of the KV event plane (Infera infera/kv/nats_bus.py).
const (
	// Stream is the JetStream stream that keeps the fleet's events.
	Stream = "INFERA_KV_EVENTS"
	// Subjects matches the subject of every worker's events,
	// infera.kv.events.<token>.<rank>.
	Subjects = subjectPrefix + ">"
	// Bucket is the key-value bucket in which relays keep what they know of
	// their engine's cache, under <token>.<rank>.
	Bucket = "infera_kv_view"

	subjectPrefix = "infera.kv.events."
)

// MarksBucket is where the routers of a fleet note which process of each worker
// they have seen since when. It is ours: nothing of Infera reads it.
const MarksBucket = "pointsman_kv_incarnations"

// ErrName means that a subject or a key names no worker and rank.
var ErrName = errors.New("names no worker and rank")

// ErrView means that a bucket's value is no list of block hashes.
var ErrView = errors.New("not a list of block hashes")

// maxRank is far above any data-parallel size.
const maxRank = 1 << 16

// Subject returns the subject of the events of one rank of a worker; rank 0 for
// a worker without ranks.
func Subject(workerID string, rank int) string { return subjectPrefix + Key(workerID, rank) }

// Key returns the bucket's key of one rank of a worker.
func Key(workerID string, rank int) string {
	return wire.Token(workerID) + "." + strconv.Itoa(rank)
}

// parseSubject returns the worker and rank of an event subject. Its error wraps
// [ErrName].
func parseSubject(subject string) (workerID string, rank int, err error) {
	key, ok := strings.CutPrefix(subject, subjectPrefix)
	if !ok {
		return "", 0, ErrName
	}
	return parseKey(key)
}

// parseKey returns the worker and rank of a bucket's key. Its error wraps
// [ErrName]. Only the one spelling that [Key] gives is taken: with two, one rank
// would have two sources.
func parseKey(key string) (workerID string, rank int, err error) {
	token, digits, ok := strings.Cut(key, ".")
	if !ok {
		return "", 0, ErrName
	}
	id, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(id) == 0 || !utf8.Valid(id) {
		return "", 0, fmt.Errorf("%w: the token is not a worker's", ErrName)
	}
	rank, err = strconv.Atoi(digits)
	if err != nil || rank < 0 || rank > maxRank || strconv.Itoa(rank) != digits {
		return "", 0, fmt.Errorf("%w: the rank is not a small number", ErrName)
	}
	if wire.Token(string(id)) != token { // the decoder passes over line breaks
		return "", 0, fmt.Errorf("%w: the token is not a worker's", ErrName)
	}
	return string(id), rank, nil
}

// decodeView reads a bucket's value: an array of router hashes in MessagePack,
// of which the first limit are returned. Its error wraps [ErrView].
func decodeView(data []byte, limit int) ([]uint64, error) {
	n, rest, err := msgp.ReadArrayHeaderBytes(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrView, err)
	}
	if int64(n) > int64(len(rest)) {
		return nil, fmt.Errorf("%w: %d hashes in %d bytes", ErrView, n, len(rest))
	}
	out := make([]uint64, 0, min(int(n), limit))
	for range n {
		var h uint64
		if h, rest, err = msgp.ReadUint64Bytes(rest); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrView, err)
		}
		if len(out) < limit {
			out = append(out, h)
		}
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes after it", ErrView, len(rest))
	}
	return out, nil
}
