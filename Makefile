# Verbena. `make` alone prints what there is.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO       ?= go
# Seeds of the simulation, without and with the race detector, and the first of them. 0: the clock gives it, so that each run
# meets others. It is printed; FIRST=N repeats a run.
FIRST      ?= 0
SEEDS      ?= 5000
RACE_SEEDS ?= 500
FUZZTIME   ?= 30s
# RACE=0 leaves the race detector out (it is the only thing here that needs a C compiler).
RACE     ?= 1
# TSHARK=0 goes on without tshark, against which captures are held.
TSHARK   ?= 1
# SHORT=1: one quick round of the benchmarks.
SHORT    ?=
# Extra arguments: make demo ARGS="-file big.iso", make bench ARGS="-runs 9".
ARGS     ?=

# The main module has no cgo; only the race detector turns it on.
export CGO_ENABLED := 0

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/verbena
	$(GO) build -trimpath -o bin/verbena ./cmd/verbena

.PHONY: demo
demo: ## See real data move by RDMA between two processes
	$(GO) run ./cmd/verbena demo $(ARGS)

.PHONY: test
test: check unit race sim ## check, all tests, again with the race detector, the simulation

# ---- checks that run no code of ours -------------------------------------------------------------

.PHONY: check
check: fmt vet cross arch ## Formatting, vet, staticcheck, import rules, other systems

.PHONY: fmt
fmt:
	@echo "== gofumpt"
	@bad=$$($(GO) tool gofumpt -l .); if [ -n "$$bad" ]; then \
		echo "not formatted (run: go tool gofumpt -w .):"; echo "$$bad"; exit 1; fi

.PHONY: vet
vet:
	@echo "== go vet, staticcheck"
	$(GO) vet ./...
	$(GO) vet -tags interop ./...
	$(GO) tool staticcheck ./...
	$(GO) tool staticcheck -tags interop ./...

# vet compiles the tests too, so what only a test uses is covered on each system.
.PHONY: cross
cross:
	@echo "== other systems"
	GOOS=linux GOARCH=arm64 $(GO) vet ./...
	GOOS=darwin GOARCH=arm64 $(GO) vet ./...
	GOOS=windows GOARCH=amd64 $(GO) vet ./...

.PHONY: arch
arch:
	@echo "== import rules"
	$(GO) test -count=1 ./internal/archtest

# One package at a time (-p 1): several have processes of their own with real timers.
# ---- tests ---------------------------------------------------------------------------------------

ifeq ($(TSHARK),0)
need-tshark = echo "== captures against Wireshark's dissector: only if tshark is there (TSHARK=0)"
else
need-tshark = command -v tshark >/dev/null || { \
	echo "Captures are held against Wireshark's dissector, and tshark is not installed."; \
	echo "Install it (Debian: apt-get install tshark), or run: make test TSHARK=0"; exit 1; }
export VERBENA_REQUIRE_TSHARK := 1
endif

.PHONY: unit
unit: ## All tests, no cgo (captures need tshark)
	@echo "== tests"
	@$(need-tshark)
	$(GO) test -p 1 ./...

.PHONY: race
race: ## All tests and the simulation with the race detector (needs a C compiler)
ifeq ($(RACE),0)
	@echo "== race detector: LEFT OUT (RACE=0)"
else
	@echo "== tests with the race detector"
	@cc=$$($(GO) env CC); command -v $${cc%% *} >/dev/null || { \
		echo "The race detector needs a C compiler and '$$cc' is not installed."; \
		echo "Install one (Debian: apt-get install gcc libc6-dev), or run: make test RACE=0"; exit 1; }
	CGO_ENABLED=1 $(GO) test -race -p 1 ./...
	CGO_ENABLED=1 $(GO) test -race ./internal/simtest -run '^TestSimulation$$' -count=1 -v -sim.first=$(FIRST) -sim.seeds=$(RACE_SEEDS) -timeout 3h
endif

.PHONY: sim
sim: ## The simulation against its model: SEEDS=5000 FIRST=N
	@echo "== simulation, $(SEEDS) seeds"
	$(GO) test ./internal/simtest -run '^TestSimulation$$' -count=1 -v -sim.first=$(FIRST) -sim.seeds=$(SEEDS) -timeout 3h

.PHONY: fuzz
fuzz: ## Every fuzz target in turn for FUZZTIME=30s
	@files=$$(grep -rl --include='*_test.go' '^func Fuzz' . || true); \
	for dir in $$(for f in $$files; do dirname $$f; done | sort -u); do \
		for target in $$(cat $$dir/*_test.go | sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' | sort -u); do \
			echo "== $$dir $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$dir; \
		done; \
	done

.PHONY: cover
cover: ## Test coverage, as cover.html
	$(GO) test -coverpkg=./... -coverprofile=cover.out ./...
	$(GO) tool cover -func=cover.out | tail -1
	$(GO) tool cover -html=cover.out -o cover.html

# ---- peers ---------------------------------------------------------------------------------------

.PHONY: interop
interop: ## Against the Linux kernel's own RDMA in QEMU (Linux, root)
	interop/setup.sh
	$(GO) test -p 1 -tags interop -count=1 -v -timeout 40m ./interop/...

.PHONY: bench
bench: ## Beside iperf3, sockperf, UCX and the bare loop; SHORT=1 for a quick look
	bench/setup.sh
	$(GO) run ./bench/cmd/verbena-bench $(if $(filter-out 0,$(SHORT)),-short) $(ARGS)
	@echo "== processes at one address: joining, connecting"
	$(GO) test -run '^$$' -bench '^Benchmark(Join|Connect1000QueuePairs|ConnectRateOfProcesses)$$' -benchtime 20x ./internal/host
	$(GO) test -run '^$$' -bench '^Benchmark(Join|Connect1000QueuePairs|ConnectRateOfProcesses)$$' -benchtime 3x ./rdmacm

.PHONY: clean
clean: ## Remove what was built and measured
	rm -rf bin bench/out cover.out cover.html
