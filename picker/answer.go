package picker

// How long an answer will be is learned from those that have ended: the mean of all that
// the candidates gave, each worker's later ones counting more, beside some of
// [Latency].OutputTokens. It is a matter of the model and of who asks it, not of the
// worker: so it is one number for all candidates, and load reports say nothing of it,
// for the requests that a picker has sent are as good a sample as any.
const (
	answerDecay = 0.98 // of a worker's sums, with each answer
	answerMass  = 20   // answers of OutputTokens that stand beside those that came
	// longestAnswer is the most tokens that an answer counts as: one wrong number of an
	// engine would else drown the prompt's part in all costs for thousands of requests.
	longestAnswer = 1 << 17
)

// answers is what ended answers have taught. The zero value is nothing.
type answers struct {
	tokens, n float64
}

func (a *answers) sample(tokens int) {
	a.tokens = a.tokens*answerDecay + float64(min(tokens, longestAnswer))
	a.n = a.n*answerDecay + 1
}

func (a *answers) add(o *answers) {
	a.tokens += o.tokens
	a.n += o.n
}

// answer returns the tokens to expect of an answer.
func (l *Latency) answer(said answers) float64 {
	return max(1, (said.tokens+answerMass*l.OutputTokens)/(said.n+answerMass))
}

// Answered says how many tokens the request's answer had, which teaches how long others
// will be. It is to be called before Done, once, for an answer that is complete; nothing
// is learned of fewer than one.
func (d *Decision) Answered(tokens int) {
	if d.rec == nil || tokens < 1 {
		return
	}
	p := d.p
	p.mu.Lock()
	if d.rec.gen == d.gen {
		d.rec.legs[0].t.answers.sample(tokens)
	}
	p.mu.Unlock()
}
