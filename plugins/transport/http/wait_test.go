package http

import "testing"

func TestABodyWaitsOnlyWhenNothingIsToBeJudged(t *testing.T) {
	for name, tc := range map[string]struct {
		b    body
		have string
		want bool
	}{
		"nothing at hand":          {body{framing: framedByLength, left: 5}, "", true},
		"data at hand":             {body{framing: framedByLength, left: 5}, "da", false},
		"before the first chunk":   {body{framing: framedByChunks}, "", true},
		"only the end of a chunk":  {body{framing: framedByChunks, inChunk: true}, "\r\n", true},
		"a wrong end of a chunk":   {body{framing: framedByChunks, inChunk: true}, "xx", false},
		"an empty line for a size": {body{framing: framedByChunks}, "\r\n", false},
		"a line break in the data": {body{framing: framedByChunks, inChunk: true, left: 9}, "\r\n", false},
		"the next chunk":           {body{framing: framedByChunks, inChunk: true}, "\r\n5\r\n", false},
		"behind its end":           {body{framing: framedByChunks, done: true}, "", false},
		"behind a failure":         {body{framing: framedByChunks, err: errClosed}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			tc.b.x = &exchange{c: &conn{buf: []byte(tc.have), w: len(tc.have)}}
			if got := tc.b.Waits(); got != tc.want {
				t.Errorf("waits: %v, want %v", got, tc.want)
			}
		})
	}
}
