//go:build !unix

package http

import "pointsman/forward"

// socket is empty where nothing can be done below net.Conn.
type socket struct{}

func (c *conn) bind() {}

// alive cannot look at the connection on this system: a dead one shows when the
// request is written.
func (c *conn) alive() bool { return true }

func (c *conn) bare() bool { return false }

func (c *conn) await() error { return nil }

func (c *conn) poll() (bool, error) { return false, nil }

func (c *conn) ask([]byte, *forward.Progress) error { return nil }
