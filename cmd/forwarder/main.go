// Command forwarder relays OpenAI requests to workers: as a worker's sidecar
// that obeys an endpoint picker (direct), or by its own pick (auto).
package main

import (
	"pointsman/config"
	"pointsman/internal/assemble"
)

func main() { assemble.Main(config.Forwarder, serve) }
