package forward

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
)

// plain takes a compression off resp that was not asked for: nothing that is
// relayed where the relay has to see events may be opaque to it. gzip is what
// engines' servers compress with; the error of any other coding is [ErrProtocol].
func plain(resp *Response) error {
	coding := strings.ToLower(strings.TrimSpace(strings.Join(resp.Header["Content-Encoding"], ",")))
	switch coding {
	case "":
		return nil
	case "identity":
	case "gzip", "x-gzip":
		resp.Body, resp.Length = &unzipped{src: resp.Body}, -1
	default:
		return &Error{Stage: StageHead, Err: fmt.Errorf("%w: content coding that was not asked for", ErrProtocol)}
	}
	delete(resp.Header, "Content-Encoding")
	return nil
}

// unzipped is a decompressed body. It returns what is at hand, as far as the
// worker's compressor has flushed it.
type unzipped struct {
	src io.ReadCloser
	zip *gzip.Reader // nil before the first Read
	err error        // what Read returns from now on
}

// Read returns io.EOF only behind a complete compressed body whose sum is right.
func (u *unzipped) Read(p []byte) (int, error) {
	if u.err != nil {
		return 0, u.err
	}
	if u.zip == nil {
		zip, err := gzip.NewReader(bufio.NewReaderSize(u.src, smallBuffer/4))
		if err != nil {
			return 0, u.fail(err)
		}
		u.zip = zip
	}
	n, err := u.zip.Read(p)
	if err != nil {
		err = u.fail(err)
	}
	return n, err
}

// fail keeps err as a transport would tell it.
func (u *unzipped) fail(err error) error {
	var broken *Error
	switch {
	case errors.Is(err, io.EOF), errors.As(err, &broken):
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = &Error{Stage: StageBody, Err: fmt.Errorf("%w: %w", ErrTruncated, err)}
	default:
		err = &Error{Stage: StageBody, Err: fmt.Errorf("%w: %w: %w", ErrTruncated, ErrProtocol, err)}
	}
	u.err = err
	return err
}

// Close closes the worker's body.
func (u *unzipped) Close() error { return u.src.Close() }
