package stack

import (
	"context"
	"sync"
	"time"
)

// Service is a program that can be started again after it ended.
type Service struct {
	Name string

	dir   string
	argv  []string
	ready func(context.Context) error

	mu   sync.Mutex
	proc *Process
}

// Launch starts the program without waiting for it to be ready.
func (s *Service) Launch() error {
	p, err := startProcess(s.dir, s.Name, nil, s.argv...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc = p
	return nil
}

// Start launches the program and waits until it is ready.
func (s *Service) Start(ctx context.Context) error {
	if err := s.Launch(); err != nil {
		return err
	}
	return s.Ready(ctx)
}

// Ready waits until the program's own endpoint says that it is ready. It fails
// at once when the program ends.
func (s *Service) Ready(ctx context.Context) error {
	return Until(ctx, s.Name+" to be ready", s.ready, s.Process())
}

// Process returns the latest process, nil before the first.
func (s *Service) Process() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// Kill ends the program with SIGKILL.
func (s *Service) Kill() {
	if p := s.Process(); p != nil {
		p.Kill()
	}
}

// Stop asks the program to end and waits up to patience before killing it, which
// is an error.
func (s *Service) Stop(patience time.Duration) error {
	if p := s.Process(); p != nil {
		return p.Stop(patience)
	}
	return nil
}
