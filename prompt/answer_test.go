package prompt

import (
	"errors"
	"slices"
	"testing"
)

func TestTheAnswerOfTokenizeIsReadStrictly(t *testing.T) {
	for answer, want := range map[string][]uint32{
		`{"count":3,"max_model_len":4096,"tokens":[1,2,3],"token_strs":null}`: {1, 2, 3},
		` { "tokens" : [ 7 ] } `:           {7},
		`{"tokens":[],"count":0}`:          {},
		`{"tokens":[1,2],"count":3}`:       nil,
		`{"tokens":[[1,2]]}`:               nil,
		`{"tokens":[-1]}`:                  nil,
		`{"tokens":["a"]}`:                 nil,
		`{"tokens":[1`:                     nil,
		`{"tokens":[1],"tokens":[2]}`:      nil,
		`{"tokens":null}`:                  nil,
		`{"count":3}`:                      nil,
		`{"detail":"Not Found"}`:           nil,
		`{"error":{"message":"no"}, "x":}`: nil,
		`[1,2]`:                            nil,
		`<html>`:                           nil,
		``:                                 nil,
	} {
		got, err := AppendTokenIDs([]uint32{9}, []byte(answer))
		if want == nil {
			if !errors.Is(err, ErrAnswer) || !slices.Equal(got, []uint32{9}) {
				t.Errorf("%s: %v, %v", answer, got, err)
			}
			continue
		}
		if err != nil || !slices.Equal(got, append([]uint32{9}, want...)) {
			t.Errorf("%s: %v, %v, want %v", answer, got, err, want)
		}
	}
}
