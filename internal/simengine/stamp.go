package simengine

// StampField is the body field that makes the engine answer with tokens that
// say where they come from: attempt/number, the attempt being the one in the
// receipt ("<request id>/m1"), or for a request without one its request id and
// "/x" with the receipt's number. Two generations in one stream, a gap or a
// repetition can be seen from the text alone.
const StampField = "sim_stamp"

// stampJob replaces the text of j's tokens if b asks for it. The engine's cache
// is told of the tokens that were to be.
func stampJob(b body, j *job, rc *entry) *apiError {
	var stamped bool
	if err := b.get(StampField, &stamped); err != nil || !stamped {
		return err
	}
	var attempt string
	rc.update(func(r *Receipt) {
		if attempt = r.AttemptID; attempt == "" {
			attempt = r.RequestID + "/x" + itoa(int(r.Seq)) //nolint:gosec // a count
		}
	})
	for _, c := range j.choices {
		for i := range c.pieces {
			c.pieces[i] = attempt + "/" + itoa(i) + " "
		}
	}
	return nil
}
