package prompt

import (
	"errors"
	"net/http"
	"strconv"
)

// ErrTooLarge is what a door answers (413) for a body over its limit. Scan never
// returns it: the limit must hold while the body arrives.
var ErrTooLarge = errors.New("request body is over the limit; send a smaller one")

// ErrTooLong is what a [Tokenizer] returns for a prompt that it does not even try,
// because its answer would come too late.
var ErrTooLong = errors.New("the prompt is too long to be tokenized in time")

// Codes of a BadRequest.
const (
	CodeInvalidJSON  = "invalid_json"         // not one JSON object in valid UTF-8
	CodeDuplicateKey = "duplicate_key"        // a routing key is there twice
	CodeTooDeep      = "too_deep"             // nested deeper than MaxDepth
	CodeNoModel      = "no_model"             // model is missing or empty
	CodeWrongType    = "wrong_type"           // a routing key has a value of the wrong type
	CodeInvalidValue = "invalid_value"        // right type, impossible value
	CodeEncoding     = "unsupported_encoding" // Content-Encoding other than identity
)

// BadRequest is a body that cannot be served. Its text is for the client.
type BadRequest struct {
	Status  int    // HTTP status: 400, or 415 for CodeEncoding
	Code    string // one of the Code constants
	Param   string // JSON key at fault, "" for none
	Message string // what is wrong, where (byte offset), and what to send instead
	Offset  int    // byte offset in the body; 0 when it has no place
}

// Error returns the message.
func (e *BadRequest) Error() string { return e.Message }

// badAt returns a 400 whose message ends with the place of the fault.
func badAt(code, param string, offset int, msg string) *BadRequest {
	return &BadRequest{
		Status:  http.StatusBadRequest,
		Code:    code,
		Param:   param,
		Message: msg + " (at byte " + strconv.Itoa(offset) + " of the body)",
		Offset:  offset,
	}
}

func noModel() *BadRequest {
	return &BadRequest{
		Status:  http.StatusBadRequest,
		Code:    CodeNoModel,
		Param:   "model",
		Message: `the request names no model; set "model" to one that GET /v1/models lists`,
	}
}

func unsupportedEncoding(enc string) *BadRequest {
	return &BadRequest{
		Status:  http.StatusUnsupportedMediaType,
		Code:    CodeEncoding,
		Message: "Content-Encoding " + strconv.Quote(enc) + " is not supported here; send the JSON body uncompressed",
	}
}
