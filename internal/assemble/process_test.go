package assemble

import (
	"testing"
	"testing/fstest"
)

func TestTheContainersMemoryIsRead(t *testing.T) {
	file := func(name, text string) fstest.MapFS { return fstest.MapFS{name: {Data: []byte(text)}} }
	tests := []struct {
		name   string
		cgroup fstest.MapFS
		want   int64
	}{
		{"version 2", file("memory.max", "536870912\n"), 512 << 20},
		{"version 2 without a limit", file("memory.max", "max\n"), 0},
		{"version 1", file("memory/memory.limit_in_bytes", "1073741824\n"), 1 << 30},
		{"version 1 without a limit", file("memory/memory.limit_in_bytes", "9223372036854771712\n"), 0},
		{"no control groups", fstest.MapFS{}, 0},
		{"nonsense", file("memory.max", "lots\n"), 0},
	}
	for _, tt := range tests {
		if got := containerMemory(tt.cgroup); got != tt.want {
			t.Errorf("%s: %d bytes, want %d", tt.name, got, tt.want)
		}
	}
}
