// Package giecompat drives the real endpoint picker with the test helpers of the
// Gateway API Inference Extension's own picker: what that one is tested by, ours
// is, too. It is a module of its own, since the helpers bring that picker's
// dependencies with them, and are gone from later versions.
//
// # Concurrency
//
// Each test has a picker of its own, and an API server for it to follow.
package giecompat
