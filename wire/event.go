package wire

import (
	"bytes"

	"pointsman/kvindex"
)

const (
	errNoType    decodeError = "event without a type"
	errType      decodeError = "event type not known"
	errBlockSize decodeError = "block size out of range"
	errNoHashes  decodeError = "event without block hashes"
)

// maxBlockSize is far above any engine's page size; it bounds what a nonsense
// number can make the index do.
const maxBlockSize = 1 << 20

// field is one property of an event, by the name it has in the map encoding.
type field uint8

const (
	fieldOther field = iota
	fieldType
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoraID
	fieldMedium
	fieldLoraName
	fieldExtraKeys
	fieldSpecKind
	fieldSalt
)

// fieldAt returns the property at place i, counted behind the type, of the array
// encoding. SGLang sends no more than the medium, vLLM in its array form goes
// on; further elements are passed over.
func fieldAt(kind kvindex.Kind, i int) field {
	stored := [...]field{
		fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoraID, fieldMedium,
		fieldLoraName, fieldExtraKeys, fieldOther, fieldSpecKind,
	}
	switch {
	case kind == kvindex.Stored && i < len(stored):
		return stored[i]
	case kind == kvindex.Removed && i == 0:
		return fieldHashes
	case kind == kvindex.Removed && i == 1:
		return fieldMedium
	}
	return fieldOther
}

// firstOptional is the place of the first element of a stored event that only
// newer engines send: one of another kind than expected is passed over, not a
// fault.
const firstOptional = 6

func fieldOf(key []byte) field {
	switch string(key) {
	case "type":
		return fieldType
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoraID
	case "lora_name":
		return fieldLoraName
	case "medium":
		return fieldMedium
	case "extra_keys":
		return fieldExtraKeys
	case "kv_cache_spec_kind":
		return fieldSpecKind
	case "cache_salt":
		return fieldSalt
	}
	return fieldOther
}

// fields is what an event says beside what goes straight into kvindex.Event.
// Its slices alias the message.
type fields struct {
	kind     kvindex.Kind
	hasKind  bool
	hasHash  bool
	spec     []byte
	loraName []byte
	loraID   int64
	salt     []byte
	extra    int // where extra_keys begins; 0 for none
}

func (d *decoder) event() error {
	c, err := d.r.peek()
	if err != nil {
		return err
	}
	d.f = fields{}
	e := d.slot()
	if isMap(c) {
		err = d.mapEvent(e)
	} else {
		err = d.arrayEvent(e)
	}
	if err != nil {
		return err
	}
	return d.finish(e)
}

func (d *decoder) mapEvent(e *kvindex.Event) error {
	n, err := d.r.mapLen()
	if err != nil {
		return err
	}
	for range n {
		key, err := d.r.text()
		if err != nil {
			return err
		}
		if err := d.field(e, fieldOf(key)); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) arrayEvent(e *kvindex.Event) error {
	n, err := d.r.arrayLen()
	if err != nil {
		return err
	}
	if n == 0 {
		return errNoType
	}
	if err := d.field(e, fieldType); err != nil {
		return err
	}
	for i := range n - 1 {
		at := d.r.at
		err := d.field(e, fieldAt(d.f.kind, i))
		if err != nil && i >= firstOptional {
			d.r.at = at
			err = d.r.skip(1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// field reads one value of e.
func (d *decoder) field(e *kvindex.Event, f field) (err error) {
	r := &d.r
	switch f {
	case fieldOther:
		return r.skip(1)
	case fieldType:
		return d.kind()
	case fieldHashes:
		d.f.hasHash = true
		e.Hashes, err = r.hashes(e.Hashes)
		return err
	case fieldTokens:
		e.Tokens, err = r.tokens(e.Tokens)
		return err
	}
	if r.nilNext() {
		return nil
	}
	switch f {
	case fieldParent:
		e.HasParent = true
		e.Parent, err = r.hash()
	case fieldBlockSize:
		e.BlockSize, err = r.blockSize()
	case fieldLoraID:
		err = d.loraID()
	case fieldMedium:
		var name []byte
		name, err = r.text()
		e.Tier = tier(name)
	case fieldLoraName:
		d.f.loraName, err = r.text()
	case fieldExtraKeys:
		return d.markExtraKeys()
	case fieldSpecKind:
		d.f.spec, err = r.text()
	case fieldSalt:
		d.f.salt, err = r.text()
	}
	return err
}

func (d *decoder) kind() error {
	name, err := d.r.text()
	if err != nil {
		return err
	}
	switch string(name) {
	case "BlockStored":
		d.f.kind = kvindex.Stored
	case "BlockRemoved":
		d.f.kind = kvindex.Removed
	case "AllBlocksCleared":
		d.f.kind = kvindex.Cleared
	default:
		return errType
	}
	d.f.hasKind = true
	return nil
}

func (r *reader) blockSize() (int, error) {
	bits, negative, err := r.integer()
	if err == nil && (negative || bits == 0 || bits > maxBlockSize) {
		err = errBlockSize
	}
	return int(bits), err //nolint:gosec // in range, or with an error
}

// loraID reads a number, or the name that newer SGLang versions send here.
func (d *decoder) loraID() error {
	c, err := d.r.peek()
	if err != nil {
		return err
	}
	if isText(c) {
		var name []byte
		name, err = d.r.text()
		if len(d.f.loraName) == 0 {
			d.f.loraName = name
		}
		return err
	}
	bits, _, err := d.r.integer()
	d.f.loraID = int64(bits) //nolint:gosec // back to what was sent
	return err
}

// finish settles what depends on more than one property. Events of a cache
// group that is no full attention cannot be told from prefix blocks once in the
// index, so they end here (Infera infera/router/kv_event/events.py).
func (d *decoder) finish(e *kvindex.Event) error {
	if !d.f.hasKind {
		return errNoType
	}
	if !fullAttention(d.f.spec) {
		d.batch.Events = d.batch.Events[:len(d.batch.Events)-1]
		return nil
	}
	e.Kind = d.f.kind
	switch e.Kind {
	case kvindex.Cleared:
		*e = kvindex.Event{Kind: kvindex.Cleared, Hashes: e.Hashes[:0], Tokens: e.Tokens[:0]}
		return nil
	case kvindex.Removed:
		if !d.f.hasHash {
			return errNoHashes
		}
		*e = kvindex.Event{Kind: kvindex.Removed, Tier: e.Tier, Hashes: e.Hashes, Tokens: e.Tokens[:0]}
		return nil
	}
	if !d.f.hasHash {
		return errNoHashes
	}
	if e.BlockSize == 0 {
		if len(e.Hashes) == 0 || len(e.Tokens) == 0 || len(e.Tokens)%len(e.Hashes) != 0 {
			return errBlockSize
		}
		e.BlockSize = len(e.Tokens) / len(e.Hashes)
	}
	return d.extras(e)
}

func fullAttention(spec []byte) bool {
	switch string(spec) {
	case "", "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}

// tier reads a medium. Engines and their cache layers name media freely, so the
// rule is by what the name contains; one that says nothing is the slowest, so
// that an unknown medium is never taken for the device.
func tier(medium []byte) kvindex.Tier {
	switch string(medium) {
	case "":
		return 0
	case "GPU", "DEVICE", "gpu", "device":
		return kvindex.Device
	case "CPU", "HOST", "cpu", "host":
		return kvindex.Host
	}
	var buf [32]byte
	name := append(buf[:0], medium[:min(len(medium), len(buf))]...)
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			name[i] = c + 'a' - 'A'
		}
	}
	for _, word := range [...]string{"cpu", "host", "dram", "pinned"} {
		if bytes.Contains(name, []byte(word)) {
			return kvindex.Host
		}
	}
	for _, word := range [...]string{"gpu", "device", "hbm", "vram", "cuda", "rocm", "hip"} {
		if bytes.Contains(name, []byte(word)) {
			return kvindex.Device
		}
	}
	return kvindex.Disk
}
