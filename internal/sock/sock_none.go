//go:build !unix

package sock

import "net"

// Conn is net.Conn where there is nothing better.
type Conn struct{ net.Conn }

// New returns c.
func New(c net.Conn) net.Conn { return c }
