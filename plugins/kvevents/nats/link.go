package nats

import (
	"context"

	"github.com/nats-io/nats.go"

	"pointsman/internal/broker"
)

// dial connects to the broker. closed is closed when the connection has ended.
func (s *Subscriber) dial(ctx context.Context) (nc *nats.Conn, closed <-chan struct{}, err error) {
	over := make(chan struct{})
	nc, err = s.cfg.Broker.Dial(ctx, "pointsman-router-kv", s.cfg.ConnectWait,
		nats.ClosedHandler(func(*nats.Conn) { close(over) }), broker.LogFaults(ctx, s.log))
	return nc, over, err
}
