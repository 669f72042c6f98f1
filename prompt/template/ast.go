package template

// expr is a node that has a value; stmt is one that does something.
type expr interface{ eval(r *run) value }

type stmt interface{ exec(r *run) flow }

// flow is how a statement ended.
type flow uint8

const (
	flowNext flow = iota
	flowBreak
	flowContinue
)

type (
	constExpr struct{ v value }
	nameExpr  struct {
		name string
		ref  slotRef
	}
	// nsTarget is NAME.ATTR on the left side of a set.
	nsTarget struct {
		nameExpr
		attr string
	}
	listExpr  struct{ items []expr }
	tupleExpr struct{ items []expr }
	dictExpr  struct{ keys, vals []expr }
	condExpr  struct {
		test, yes, no expr // no may be nil
		line          int
	}
	binExpr struct {
		op   string
		a, b expr
	}
	// addExpr is a chain a + b + …, flat because prompts are built so.
	addExpr    struct{ terms []expr }
	concatExpr struct{ terms []expr }
	unaryExpr  struct {
		op string // "-", "+" or "not"
		x  expr
	}
	logicExpr struct {
		or   bool
		a, b expr
	}
	compareExpr struct {
		first expr
		ops   []string
		terms []expr
	}
	attrExpr struct {
		x    expr
		name string
	}
	itemExpr  struct{ x, key expr }
	sliceExpr struct {
		x, from, to, step expr // bounds may be nil
	}
	callExpr struct {
		fn expr
		callArgs
	}
	filterExpr struct {
		x    expr // nil in filter blocks: the block's text
		name string
		fn   filterFunc
		line int
		callArgs
	}
	testExpr struct {
		x    expr
		name string
		fn   testFunc
		callArgs
	}
)

// callArgs are the arguments of a call, filter or test.
type callArgs struct {
	args     []expr
	names    []string // of the keyword arguments
	kwargs   []expr
	dynArgs  expr // *x
	dynNamed expr // **x
}

type (
	outputStmt struct {
		parts []outPart
	}
	// outPart is text or an expression to print.
	outPart struct {
		text string
		x    expr
		line int
	}
	forStmt struct {
		line      int
		target    expr
		iter      expr
		test      expr
		body, alt []stmt
		scope     *scopeInit // of the body
		testScope *scopeInit
		altScope  *scopeInit
		loopRef   slotRef
		usesLoop  bool
		testSlots expr // target in the test's scope
	}
	ifStmt struct {
		line  int
		tests []expr
		arms  [][]stmt
		alt   []stmt
	}
	setStmt struct {
		line   int
		target expr
		x      expr
	}
	setBlockStmt struct {
		line   int
		target expr
		filter expr // with a nil innermost operand, or nil
		body   []stmt
		scope  *scopeInit
	}
	macroStmt struct {
		line int
		name nameExpr
		def  *macroDef
	}
	callBlockStmt struct {
		line int
		call *callExpr
		def  *macroDef
	}
	filterBlockStmt struct {
		line   int
		filter expr
		body   []stmt
		scope  *scopeInit
	}
	withStmt struct {
		line    int
		targets []expr
		values  []expr
		body    []stmt
		scope   *scopeInit
	}
	// genStmt is transformers' generation tag: its body runs as a macro does.
	genStmt struct {
		line int
		def  *macroDef
	}
	blockStmt struct {
		line int
		name string
		body []stmt
		proc *procInfo
		init *scopeInit
	}
	breakStmt    struct{}
	continueStmt struct{}
)

// macroDef is a macro's or call block's code.
type macroDef struct {
	name     string
	line     int
	params   []*nameExpr
	defaults []expr // of the last len(defaults) params
	body     []stmt

	proc                      *procInfo
	init                      *scopeInit
	caller, kwargs, varargs   slotRef
	hasCaller, hasKw, hasVar  bool
	explicitCaller, anonymous bool
}

// slotRef is where a variable lives: the frame up levels out, at idx.
type slotRef struct{ up, idx int32 }

// procInfo is what has a frame of its own: the template, a macro, a block.
type procInfo struct {
	parent *procInfo
	slots  int32
}

// scopeInit says what to do with a scope's variables when it is entered.
type scopeInit struct{ ops []initOp }

type initOp struct {
	slot int32
	how  initHow
	src  slotRef // initAlias
	name int32   // initResolve: index into the template's names
}

type initHow uint8

const (
	initMissing initHow = iota
	initAlias
	initResolve
)
