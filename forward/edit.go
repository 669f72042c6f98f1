package forward

import (
	"net/http"
	"time"

	"pointsman/admission"
	"pointsman/prompt"
)

// edit makes of the client's body what workers may get: without the fields by which
// routers tell engines of each other, and under the salt of its tenant. What is not
// edited keeps its bytes.
func (x *exchange) edit() error {
	if x.s.deps.Salts.Requires() && x.kind != prompt.Other && x.parsed.CacheSalt == "" {
		return &prompt.BadRequest{
			Status: http.StatusBadRequest, Code: "cache_salt_required", Param: "cache_salt",
			Message: "send a cache_salt: prompts of different salts share no cache",
		}
	}
	if x.body == nil {
		return nil
	}
	salted := x.s.deps.Salts.Derives() && (x.kind != prompt.Other || isResponses(x.r.URL.Path))
	strip := x.cfg.StripTransfer && (x.parsed.Transfer || x.kind == prompt.Other)
	if !salted && !strip {
		return nil
	}
	o, err := ParseObject(*x.body)
	if err != nil {
		return nil //nolint:nilerr // no object, and so the engine's to refuse
	}
	fields := make([]Field, 0, 4)
	if strip {
		fields = o.transfers(fields)
	}
	if len(fields) > 0 {
		x.s.metrics.stripped.Inc()
	}
	if salted {
		salt := x.s.deps.Salts.Keys.Salt(time.Now(), x.tenant(), x.parsed.CacheSalt)
		x.parsed.CacheSalt = salt
		fields = append(fields, Field{"cache_salt", Quote(salt)})
	}
	if len(fields) == 0 {
		return nil
	}
	return x.replace(o.With(fields...))
}

// tenant returns whose request it is, as a header that has been verified says.
func (x *exchange) tenant() string {
	if name := x.cfg.Admission.Tenant; name != "" {
		return x.r.Header.Get(name)
	}
	return ""
}

// replace makes body the request's. The former one stays as it is for what the scan
// has found in it.
func (x *exchange) replace(body []byte) error {
	if !x.s.bodies.Take(int64(cap(body))) {
		return admission.ErrExhausted
	}
	x.s.bodies.Give(int64(cap(*x.body)))
	x.body = &body
	return nil
}

// maxTransfers is how many different fields are taken out; a body with more has
// been made by hand, and is refused by any engine.
const maxTransfers = 32

// transfers appends edits that take out o's transfer fields.
func (o *Object) transfers(dst []Field) []Field {
	for i := range o.members {
		name := o.members[i].name
		if prompt.TransferField([]byte(name)) && fieldOf(dst, name) < 0 && len(dst) < maxTransfers {
			dst = append(dst, Field{Name: name})
		}
	}
	return dst
}
