// Command check renders every manifest of the directory above it and proves each
// object: against the types of Kubernetes, against the schemas that the gateways
// publish, and against this repository's own flags and series.
//
// Its last line is {"overlays":…,"objects":…,"invalid":0}; with faults it lists
// them before that and exits with 1. It is a module of its own so that the
// product does not depend on Helm and kustomize.
//
// # Concurrency
//
// Single-threaded.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// report is the last line of the output.
type report struct {
	Overlays int `json:"overlays"` // value sets of the chart and kustomize overlays
	Objects  int `json:"objects"`  // Kubernetes objects in all of them
	Invalid  int `json:"invalid"`  // faults found
}

func main() {
	root := flag.String("root", "../..", "the checkout")
	update := flag.Bool("update", false, "write the files of kustomize that are rendered from the chart")
	out := flag.String("out", "", "directory to write the objects of each overlay into, and the custom resource definitions, as lists of JSON")
	flag.Parse()
	ok, err := run(*root, *out, *update, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(2) //nolint:forbidigo // this is main
	}
	if !ok {
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// run checks the manifests of the checkout at root and says whether all are good.
func run(root, out string, update bool, w io.Writer) (bool, error) {
	sets, err := renderAll(root, update)
	if err != nil {
		return false, err
	}
	schemas, err := loadSchemas(root)
	if err != nil {
		return false, err
	}
	house, err := loadHouse(root)
	if err != nil {
		return false, err
	}
	if out != "" {
		if err := write(out, rendered{name: "crds", objects: schemas.crds}); err != nil {
			return false, err
		}
	}
	var total report
	for _, set := range sets {
		if len(set.objects) > 0 {
			total.Overlays++
		}
		if out != "" {
			if err := write(out, set); err != nil {
				return false, err
			}
		}
		total.Objects += len(set.objects)
		faults := set.faults
		for _, o := range set.objects {
			faults = append(faults, schemas.faults(o)...)
			faults = append(faults, house.faults(o)...)
		}
		faults = append(faults, crossFaults(set.objects)...)
		for _, fault := range faults {
			total.Invalid++
			fmt.Fprintf(w, "%s: %s\n", set.name, fault)
		}
	}
	return total.Invalid == 0, json.NewEncoder(w).Encode(total)
}

// write puts the objects of a set into dir as one file of a JSON list.
func write(dir string, set rendered) error {
	list := make([]map[string]any, 0, len(set.objects))
	for _, o := range set.objects {
		list = append(list, o.content)
	}
	data, err := json.MarshalIndent(list, "", " ")
	return errors.Join(err, os.WriteFile(filepath.Join(dir, set.name+".json"), data, 0o600))
}
