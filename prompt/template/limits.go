package template

// Limits bounds one rendering. A zero field takes the default.
type Limits struct {
	Steps  int // statements, iterations, calls and kilobytes scanned; default 100,000 + 60 per JSON value of the input
	Memory int // bytes allocated in total; default 64 MiB + 4 times the input
	Output int // bytes of the prompt, without dst; default 16 MiB + 2 times the input
	Depth  int // nested macro calls, and nested values in JSON, repr and comparison; default 200
}

// Bounds of a template's source, checked by [Parse].
const (
	maxSource = 256 << 10 // bytes; the longest known template has 20 KB
	maxNest   = 100       // nested expressions or blocks
	maxChain  = 400       // operators, filters or subscripts in one chain; Python's own compiler gives up sooner
	maxNames  = 4096      // variables
)

const (
	defaultSteps    = 100_000
	stepsPerValue   = 60
	defaultMemory   = 64 << 20
	defaultOutput   = 16 << 20
	defaultDepth    = 200
	maxDepth        = 1000   // of a caller's Depth: the Go stack holds that many
	workUnit        = 1024   // bytes or items that one step scans
	maxRange        = 100000 // Jinja's sandbox refuses longer ranges
	maxBigBits      = 1 << 16
	valueSize       = 48
	memoryPerInput  = 4
	outputPerInput  = 2
	retainedValues  = 1 << 16 // a pooled state keeps at most these
	retainedBytes   = 1 << 20
	slabValues      = 1024
	slabEntries     = 256
	dictIndexed     = 12 // dicts with more entries get a hash index
	maxFormatWidth  = 1 << 20
	maxIntDigits    = 4300 // Python refuses to print or read longer integers
	maxSpecialNames = 64
)

func (l Limits) withDefaults(inputBytes int) Limits {
	if l.Memory <= 0 {
		l.Memory = defaultMemory + memoryPerInput*inputBytes
	}
	if l.Output <= 0 {
		l.Output = defaultOutput + outputPerInput*inputBytes
	}
	if l.Depth <= 0 {
		l.Depth = defaultDepth
	}
	l.Depth = min(l.Depth, maxDepth)
	return l
}

// step charges one unit of work.
func (r *run) step() {
	r.steps--
	if r.steps < 0 {
		r.limit("too many steps")
	}
}

// work charges a scan over n bytes or items.
func (r *run) work(n int) {
	r.small += n
	if r.small < workUnit {
		return
	}
	r.steps -= r.small / workUnit
	r.small %= workUnit
	if r.steps < 0 {
		r.limit("too many steps")
	}
}

// alloc charges n bytes about to be allocated.
func (r *run) alloc(n int) {
	if n < 0 || n > r.mem {
		r.limit("too much memory")
	}
	r.mem -= n
	r.work(n)
}

// enter counts a nested call or value; leave is its end.
func (r *run) enter() {
	r.depth++
	if r.depth > r.maxDepth {
		r.limit("nested too deep")
	}
}

func (r *run) leave() { r.depth-- }
