// Package rules holds the house rules as tests: which room may import which,
// that every package says what it is, and that the architecture page is whole.
package rules
