package rules_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// TestTestsDoNotSleep demands that a test wait for an event, or by testkit, which
// says for what. In a synctest bubble a sleep moves the bubble's clock and costs
// nothing: it is let through within synctest.Test, and in functions that call
// synctest.Wait, which only works there.
func TestTestsDoNotSleep(t *testing.T) {
	for _, file := range goFiles(t) {
		if !strings.HasSuffix(file.path, "_test.go") {
			continue
		}
		for _, decl := range file.ast.Decls {
			for range bareSleeps(decl) {
				t.Errorf("%s sleeps in %s: use testkit.Until, or testkit.Pass with the reason", file.path, name(decl))
			}
		}
	}
}

func name(decl ast.Decl) string {
	if f, ok := decl.(*ast.FuncDecl); ok {
		return f.Name.Name
	}
	return "a variable"
}

// bareSleeps returns where decl sleeps by the real clock.
func bareSleeps(decl ast.Decl) (at []token.Pos) {
	if calls(decl, "synctest", "Wait") {
		return nil
	}
	ast.Inspect(decl, func(n ast.Node) bool {
		if selects(n, "synctest", "Test") {
			return false
		}
		if selects(n, "time", "Sleep") {
			at = append(at, n.Pos())
		}
		return true
	})
	return at
}

func calls(in ast.Node, pkg, function string) (found bool) {
	ast.Inspect(in, func(n ast.Node) bool {
		found = found || selects(n, pkg, function)
		return !found
	})
	return found
}

// selects reports whether n is a call of a package's function.
func selects(n ast.Node, pkg, function string) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != function {
		return false
	}
	x, ok := f.X.(*ast.Ident)
	return ok && x.Name == pkg
}

// TestASleepIsSeen keeps TestTestsDoNotSleep able to fail.
func TestASleepIsSeen(t *testing.T) {
	for src, want := range map[string]int{
		`func f() { time.Sleep(1) }`:                                          1,
		`func f() { for ; ; time.Sleep(1) {} }`:                               1,
		`func f() { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }`: 0,
		`func f() { time.Sleep(1); synctest.Wait() }`:                         0,
		`func f() { synctest.Test(t, g); time.Sleep(1) }`:                     1,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+src, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(bareSleeps(file.Decls[0])); n != want {
			t.Errorf("%s: %d sleeps seen, want %d", src, n, want)
		}
	}
}
