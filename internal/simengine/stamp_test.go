package simengine

import "testing"

func TestStampedTokensNameTheAttemptAndTheirNumber(t *testing.T) {
	log := &receiptLog{limit: 10}
	tests := []struct {
		name string
		r    Receipt
		want string
	}{
		{"by the attempt's id", Receipt{RequestID: "r", AttemptID: "r/d2"}, "r/d2/0 r/d2/1 "},
		{"without one, by the request's and the receipt's number", Receipt{RequestID: "r"}, "r/x1/0 r/x1/1 "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := &job{choices: []*choice{{pieces: []string{"ab", " cd"}}}}
			if err := stampJob(body{StampField: []byte("true")}, j, log.add(tt.r)); err != nil {
				t.Fatal(err)
			}
			if got := j.choices[0].text(); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	j := &job{choices: []*choice{{pieces: []string{"ab"}}}}
	if err := stampJob(body{}, j, log.add(Receipt{})); err != nil || j.choices[0].text() != "ab" {
		t.Errorf("unasked: %q, %v", j.choices[0].text(), err)
	}
	if err := stampJob(body{StampField: []byte("1")}, j, log.add(Receipt{})); err == nil {
		t.Error("a number is taken for a bool")
	}
}
