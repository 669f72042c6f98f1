package rules_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "pointsman"

// doors says which of our rooms a room may import, and which outside modules
// beside the standard library. docs/architecture.md explains why.
var doors = map[string]struct{ ours, outside []string }{
	"fleet":     {nil, []string{"github.com/prometheus"}},
	"kvindex":   {nil, []string{"github.com/prometheus", "github.com/zeebo/xxh3", "golang.org/x/sys"}},
	"breaker":   {nil, []string{"github.com/prometheus"}},
	"admission": {nil, []string{"github.com/prometheus"}},
	"trust":     {[]string{"fleet"}, []string{"github.com/prometheus"}},
	"health":    {[]string{"fleet"}, []string{"github.com/prometheus"}},
	"reports":   {nil, []string{"github.com/prometheus"}},
	"wire":      {[]string{"fleet", "kvindex", "reports"}, []string{"github.com/tinylib/msgp", "github.com/zeebo/xxh3"}},
	"scorer":    {[]string{"fleet"}, nil},
	"prompt":    {[]string{"kvindex"}, []string{"github.com/prometheus", "github.com/zeebo/xxh3"}},
	"picker":    {[]string{"fleet", "scorer", "breaker", "kvindex"}, []string{"github.com/prometheus", "github.com/zeebo/xxh3"}},
	"extproc": {
		[]string{"picker", "prompt", "fleet", "objectives", "breaker", "admission", "kvindex", "trust", "reports"},
		[]string{"github.com/prometheus", "google.golang.org/grpc", "google.golang.org/protobuf", "github.com/envoyproxy/go-control-plane", "github.com/fsnotify"},
	},
	"forward": {
		[]string{"picker", "prompt", "fleet", "breaker", "admission", "kvindex", "trust", "reports"},
		[]string{"github.com/prometheus", "golang.org/x/net"},
	},
	"config": {
		[]string{"picker", "prompt", "fleet", "breaker", "admission", "health", "kvindex", "extproc", "forward", "plugins", "trust", "reports"},
		[]string{"github.com/spf13/pflag", "go.yaml.in/yaml", "github.com/prometheus", "github.com/fsnotify"},
	},
	"objectives": {nil, nil},
	"plugins": {
		[]string{"fleet", "objectives", "wire", "kvindex", "forward", "prompt", "scorer", "reports"},
		nil, // each adapter knows its own outside system
	},
}

// below are the internal packages that product rooms may import: what several
// adapters have in common.
var below = map[string][]string{
	"internal/kube":   {"plugins"},            // those that read Kubernetes
	"internal/spell":  {"plugins", "config"},  // those that read what people write
	"internal/retry":  {"plugins"},            // those that try for ever
	"internal/broker": {"plugins", "config"},  // those that speak over NATS, and who fills their settings
	"internal/sock":   {"plugins", "forward"}, // those that relay bytes
}

// TestDoors fails on an import that the doors do not allow.
func TestDoors(t *testing.T) {
	for _, file := range goFiles(t) {
		dir := filepath.ToSlash(filepath.Dir(file.path))
		room, _, _ := strings.Cut(dir, "/")
		door, guarded := doors[room]
		if !guarded || strings.HasSuffix(file.path, "_test.go") {
			continue
		}
		for _, imp := range file.ast.Imports {
			path, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if why := refused(dir, room, path, door.ours, door.outside); why != "" {
				t.Errorf("%s imports %s: %s", file.path, path, why)
			}
		}
	}
}

func refused(dir, room, path string, ours, outside []string) string {
	if inside, ok := strings.CutPrefix(path, module+"/"); ok {
		if inside == dir || room != "plugins" && (inside == room || strings.HasPrefix(inside, room+"/")) {
			return "" // its own room
		}
		target, rest, _ := strings.Cut(inside, "/")
		switch {
		case room == "plugins" && target == "plugins":
			if dir == "plugins" {
				return "" // the table of adapters
			}
			return "adapters never import each other"
		case slices.Contains(below[inside], room):
			return ""
		case target == "internal" || target == "cmd":
			return "product rooms do not import " + target + "/" + rest
		case !slices.Contains(ours, target):
			return room + " may import only " + strings.Join(ours, ", ") + " of ours"
		}
		return ""
	}
	first, _, _ := strings.Cut(path, "/")
	if !strings.Contains(first, ".") || room == "plugins" {
		return ""
	}
	if !slices.ContainsFunc(outside, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") }) {
		return room + " may import only " + strings.Join(outside, ", ") + " from outside"
	}
	return ""
}

// TestTheDoorsAreGuarded keeps TestDoors able to fail.
func TestTheDoorsAreGuarded(t *testing.T) {
	tests := []struct{ dir, path, want string }{
		{"breaker", "pointsman/fleet", "breaker may import only"},
		{"breaker", "net/http", ""},
		{"plugins/discovery/etcd", "pointsman/plugins/discovery/static", "never import each other"},
		{"plugins", "pointsman/plugins/discovery/static", ""},
		{"plugins/discovery/etcd", "pointsman/picker", "plugins may import only"},
		{"picker", "google.golang.org/grpc", "from outside"},
		{"extproc", "google.golang.org/grpc/mem", ""},
		{"forward", "pointsman/internal/bench", "do not import internal"},
		{"forward", "pointsman/internal/kube", "do not import internal"},
		{"plugins/discovery/kubernetes", "pointsman/internal/kube", ""},
		{"plugins/discovery/kubernetes", "pointsman/internal/bench", "do not import internal"},
		{"plugins/reports/nats", "pointsman/internal/broker", ""},
		{"config", "pointsman/internal/broker", ""},
		{"reports", "pointsman/internal/broker", "do not import internal"},
	}
	for _, tt := range tests {
		room, _, _ := strings.Cut(tt.dir, "/")
		got := refused(tt.dir, room, tt.path, doors[room].ours, doors[room].outside)
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s importing %s: refused = %q, want it to say %q", tt.dir, tt.path, got, tt.want)
		}
	}
}

// TestEveryPackageHasADoc demands a package comment, which is a room's door
// plate, in one file of every package.
func TestEveryPackageHasADoc(t *testing.T) {
	documented := map[string]bool{}
	for _, file := range goFiles(t) {
		if strings.HasSuffix(file.path, "_test.go") {
			continue
		}
		dir := filepath.Dir(file.path)
		documented[dir] = documented[dir] || len(file.ast.Doc.Text()) > 20
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no file has a package comment", dir)
		}
	}
}

// TestArchitectureNamesEveryRoom keeps docs/architecture.md complete.
func TestArchitectureNamesEveryRoom(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	rooms := map[string]bool{}
	for _, file := range goFiles(t) {
		rooms[filepath.ToSlash(filepath.Dir(file.path))] = true
	}
	for dir := range rooms {
		if !strings.Contains(string(page), dir+"/") && !strings.Contains(string(page), "`"+dir+"`") {
			t.Errorf("docs/architecture.md does not name %s/", dir)
		}
	}
}

// TestMainsAreShort keeps the programs' mains to flags, wiring and run.
func TestMainsAreShort(t *testing.T) {
	mains, err := filepath.Glob(filepath.Join(root, "cmd", "*", "main.go"))
	if err != nil || len(mains) == 0 {
		t.Fatalf("no mains: %v", err)
	}
	for _, path := range mains {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(src), "\n"); n > 80 {
			t.Errorf("%s has %d lines, want at most 80: move the wiring to wire.go", path, n)
		}
	}
}

const root = "../.."

type goFile struct {
	path string // from the root
	ast  *ast.File
}

func goFiles(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		files = append(files, goFile{filepath.ToSlash(rel), f})
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("no Go files: %v", err)
	}
	return files
}
