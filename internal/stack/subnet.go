package stack

import (
	"errors"
	"fmt"
	"net"
)

// lockPort is listened on at .254 of a subnet by the stack that owns it.
const lockPort = "47254"

// subnet is a /24 of loopback addresses that one stack has to itself.
type subnet struct {
	prefix string // "127.90.0."
	lock   net.Listener
}

// takeSubnet reserves the first free of 127.90.0.0/24, 127.90.1.0/24, ….
// The reservation ends with release, or with the process.
func takeSubnet() (*subnet, error) {
	var last error
	for i := range 128 {
		prefix := fmt.Sprintf("127.90.%d.", i)
		lock, err := net.Listen("tcp", prefix+"254:"+lockPort) //nolint:noctx // binding a loopback port does not block
		if err == nil {
			return &subnet{prefix: prefix, lock: lock}, nil
		}
		last = err
	}
	return nil, fmt.Errorf("no free loopback subnet (this needs Linux, where all of 127.0.0.0/8 is local): %w", last)
}

// addr returns the host'th address of the subnet, 1 to 253.
func (s *subnet) addr(host int) string { return fmt.Sprintf("%s%d", s.prefix, host) }

// release gives the subnet back.
func (s *subnet) release() error {
	if err := s.lock.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("release %s0/24: %w", s.prefix, err)
	}
	return nil
}
