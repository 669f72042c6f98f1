# Everything runs on Go, make and python3. What needs more is fetched, pinned,
# into .tools/ by `make tools`.
SHELL  := /bin/bash
GO     ?= go
TRACE  ?=
ENVOY  := .tools/envoy-1.40.0/envoy
LINT   := .tools/bin/golangci-lint
BINS   := bin/epp bin/forwarder bin/pointsman bin/simworker
# bash exports no SECONDS, so that only make's command line sets it.
CHAOS_SECONDS = $(if $(filter command line,$(origin SECONDS)),$(SECONDS),60)
BUILD  := CGO_ENABLED=0 $(GO) build -trimpath

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: build tools ## real Envoy, EPP, forwarders and simulated workers on this machine, with a kill (POLICY=least-latency, FLEET=http|nats|pd, STAY=1, TRACE=file, SEED=n)
	bin/pointsman demo --bin bin --envoy $(ENVOY) $(if $(POLICY),--policy $(POLICY)) $(if $(FLEET),--fleet $(FLEET)) $(if $(STAY),--stay) $(if $(TRACE),--trace $(TRACE)) $(if $(SEED),--seed $(SEED))

.PHONY: test
test: build tools ## everything that must hold: unit, race, fuzz seeds, end to end with real Envoy and etcd
	POINTSMAN_BIN=$(CURDIR)/bin POINTSMAN_ENVOY=$(CURDIR)/$(ENVOY) $(GO) test -race -shuffle=on -timeout 15m ./...
	$(MAKE) test-norace

# Packages with tests that say less under the race detector, or nothing: it makes
# pools lose some of what they are given.
NORACE := ./extproc ./forward ./prompt/tokens

.PHONY: test-norace
test-norace: ## what the race detector would hide: allocations on the hot paths, system calls of our own
	$(GO) test -count=1 -run 'Alloc|HostileTextIsLinear' $(NORACE)
	$(GO) test -count=1 ./internal/sock

.PHONY: giecompat
giecompat: ## drive the EPP with the test helpers of the Gateway API Inference Extension (about 110 MB of modules; not part of make test)
	cd test/giecompat && $(GO) vet . && $(GO) test -count=1 -timeout 10m .

.PHONY: manifests-check
manifests-check: ## render the chart and every overlay, and prove each object: JSON as its last line
	cd manifests/check && $(GO) test -count=1 . && $(GO) run .

.PHONY: manifests
manifests: ## rewrite what kustomize has from the chart
	cd manifests/check && $(GO) run . -update

.PHONY: check
check: fmt-check fix-check vet docs-check lint ## formatting, modern idioms, vet, generated pages, lint

.PHONY: fmt-check
fmt-check:
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt: $$out"; exit 1; }

.PHONY: fix-check
fix-check:
	@out=$$($(GO) fix -diff ./... 2>&1); test -z "$$out" || { echo "$$out"; exit 1; }

.PHONY: vet
vet:
	$(GO) vet ./...

.PHONY: lint
lint: ## golangci-lint v2, when `make lint-install` has built it
	@if [ -x $(LINT) ]; then $(LINT) run ./...; else echo "lint: skipped, run 'make lint-install' once (it builds for some minutes)"; fi

.PHONY: lint-install
lint-install: ## build the pinned golangci-lint into .tools/bin
	GOBIN=$(CURDIR)/.tools/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: fuzz
fuzz: ## 30 s on every fuzz target of wire, prompt and extproc (FUZZTIME=30s, PKGS="./..." for all)
	@set -e; for p in $$($(GO) list $${PKGS:-./wire ./prompt ./extproc}); do for f in $$($(GO) test -list '^Fuzz' $$p | grep ^Fuzz); do \
	  echo "== $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $${FUZZTIME:-30s} -fuzzminimizetime 10x $$p; done; done

.PHONY: bench-index
bench-index: bin/pointsman ## the prefix index on a trace (TRACE=file): JSON as its last line
	bin/pointsman bench index $(if $(TRACE),--trace $(TRACE))

.PHONY: scale
scale: bin/pointsman ## 1, 2, 4 and 8 replicas of the picker on one fleet, load reports over a real broker (TRACE=file): JSON as its last line
	bin/pointsman bench scale $(if $(TRACE),--trace $(TRACE))

.PHONY: bench-pick
bench-pick: bin/pointsman ## one pick at 8, 200 and 1,000 workers
	bin/pointsman bench pick

.PHONY: bench-extproc
bench-extproc: build ## the EPP under an Envoy-like client, beside a bundled reference server
	bin/pointsman bench extproc --epp bin/epp

.PHONY: bench-idle
bench-idle: build ## an EPP before 200 idle workers, and its CPU per response token in and off the token path
	bin/pointsman bench idle --epp bin/epp

.PHONY: bench-nats
bench-nats: bin/pointsman ## requests over NATS beside HTTP to the same instant worker
	bin/pointsman bench nats

.PHONY: bench-forward
bench-forward: build tools ## the forwarder in direct mode beside a direct connection, a reference proxy and Envoy
	bin/pointsman bench forward --forwarder bin/forwarder --envoy $(ENVOY)

.PHONY: replay
replay: bin/pointsman ## what each policy would do with a trace (TRACE=file), in a report with plots: HTML=replay.html
	bin/pointsman replay $(if $(TRACE),--trace $(TRACE)) --capacity --html $(or $(HTML),replay.html)

.PHONY: replay-goals
replay-goals: bin/pointsman ## policy least-latency against others on TRACE=file and on a drawn stand-in for the Mooncake synthetic trace: JSON as its last line
	bin/pointsman replay --goals $(if $(TRACE),--trace $(TRACE),--generate conversations) $(if $(TRACE),--generate $(or $(GENERATE),synthetic))

.PHONY: chaos
chaos: build tools ## break a whole fleet by a seeded schedule and check invariants (SEED=1, SECONDS=60): JSON as its last line
	bin/pointsman chaos --bin bin --envoy $(ENVOY) --seed $(or $(SEED),1) --seconds $(CHAOS_SECONDS)

.PHONY: test-recovery
test-recovery: build tools ## how requests spread five seconds and two minutes after a worker was healed
	RECOVERY_LONG=1 POINTSMAN_BIN=$(CURDIR)/bin POINTSMAN_ENVOY=$(CURDIR)/$(ENVOY) $(GO) test -v -run TestAHealedWorker -count 1 ./e2e

.PHONY: soak
soak: build tools ## the same for MINUTES=10 on one fleet, looking for leaks
	bin/pointsman soak --bin bin --envoy $(ENVOY) --seed $(or $(SEED),1) --minutes $(or $(MINUTES),10)

.PHONY: bench-tokens
bench-tokens: bin/pointsman ## the tokenizers beside PyPI tokenizers, on a real model's files from npm
	bin/pointsman bench tokens

.PHONY: parity-tokens
parity-tokens: ## compare token ids and rendered templates with the references (PyPI, npm; minutes; SEED=n, QUICK=1)
	python3 tools/parity.py $(if $(SEED),--seed $(SEED)) $(if $(QUICK),--quick)

.PHONY: docs
docs: ## regenerate docs/flags.md, docs/metrics.md and cmd/*/deps.txt
	$(GO) test ./internal/rules -run 'Generated' -rewrite

.PHONY: docs-check
docs-check:
	$(GO) test ./internal/rules

.PHONY: build
build: $(BINS) ## the four programs into bin/

.PHONY: $(BINS)
$(BINS): bin/%:
	@$(BUILD) -o $@ ./cmd/$*

.PHONY: tools
tools: $(ENVOY) ## fetch what the tests and the demo need beside Go

$(ENVOY): tools/fetch-envoy
	tools/fetch-envoy $@
