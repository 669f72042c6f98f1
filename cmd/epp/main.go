// Command epp is the endpoint picker: an Envoy ext-proc server that names the
// worker each request goes to.
package main

import (
	"pointsman/config"
	"pointsman/internal/assemble"
)

func main() { assemble.Main(config.EPP, serve) }
