package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Listen opens a TCP port for each number and closes all again when one fails.
// Port 0 stands for "not wanted" and gives nil.
func Listen(ctx context.Context, host string, ports ...int) ([]net.Listener, error) {
	out := make([]net.Listener, len(ports))
	var cfg net.ListenConfig
	for i, port := range ports {
		if port == 0 {
			continue
		}
		lis, err := cfg.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			for _, open := range out {
				if open != nil {
					_ = open.Close()
				}
			}
			return nil, fmt.Errorf("open a port: %w", err)
		}
		out[i] = lis
	}
	return out, nil
}

// HTTP returns a part that serves h on lis until its context is done.
func HTTP(lis net.Listener, h http.Handler) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
		defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
		if err := srv.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}
