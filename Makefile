.POSIX:

GO = go
FUZZTIME = 20s
RANDOM = 1000000
BENCHCOUNT = 6
VERSION = $$(git describe --tags --always --dirty 2>/dev/null || echo devel)
REVISION = $$(git rev-parse HEAD 2>/dev/null || echo unknown)
SOURCE_DATE_EPOCH = $$(git log -1 --format=%ct 2>/dev/null || echo 0)
# Nothing of the machine, of the directory or of the time is in a program: the Dockerfile builds the same.
GOBUILD = CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)"

.PHONY: help demo test docs e2e node-up node-shell node-down bench bench-plugin performance random loadtest loadtest-smoke loadtest-programs fuzz lint build image clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' Makefile

demo: ## the whole flow on this machine, nothing to install
	$(GO) run ./cmd/demo

test: ## unit tests with the race detector, and the project's own rules
	@./.ci/install test
	$(GO) test -race ./...
	cd loadtest && $(GO) test -race ./...

docs: ## docs/metrics.md, and the JSON Schemas and CustomResourceDefinitions of what people write, from the code
	$(GO) test -count=1 -run='^TestMetricsDocument$$' ./internal/metrics -update-metrics
	$(GO) test -count=1 -run='^TestSchema$$' ./internal/config ./internal/policy ./internal/policy/policytest -update-schema
	$(GO) test -count=1 -run='^TestCustomResourceDefinitions$$' ./internal/policyobjects -update-crds

e2e: ## tests with the real API server, registries and clients (root: installs Debian packages)
	@./.ci/install e2e
	cd e2e && $(GO) test -count=1 -p 1 -timeout 40m ./...

node-up: ## a cluster with two nodes, a registry and Pullpass, to try things in (root)
	@./e2e/nodetest/hold.sh up

node-shell: ## a shell in there: kubectl, ctr-NODE, pullpass
	@./e2e/nodetest/hold.sh shell

node-down: ## end it; nothing stays behind
	@./e2e/nodetest/hold.sh down

# benchstat compares the columns with the first one, the floor: "-60%" means 0.40 times the floor.
bench: bench-plugin ## cost of an exchange and of the plugin, against floors measured in the same run
	@mkdir -p bin
	$(GO) test -run='^$$' -bench=. -benchmem -count=$(BENCHCOUNT) ./internal/... >bin/bench.txt || { cat bin/bench.txt; exit 1; }
	$(GO) tool benchstat -filter='.name:Exchange' -col='/exchange@(floor first repeated mix)' bin/bench.txt
	$(GO) tool benchstat -filter='-.name:Exchange' bin/bench.txt

bench-plugin: ## start-up time and size of the kubelet plugin, against a program that does only the JSON
	@mkdir -p bin
	$(GO) test -run='^$$' -bench=Start -count=$(BENCHCOUNT) ./cmd/credential-provider >bin/bench-plugin.txt || { cat bin/bench-plugin.txt; exit 1; }
	$(GO) tool benchstat -col='/program@(floor plugin)' bin/bench-plugin.txt

# The runs are apart, so that what else the machine does in a minute does not fall on one number alone.
performance: ## docs/performance.md: what an exchange costs beside more and more rules, clusters, pods, identities
	@mkdir -p bin
	@rm -f bin/performance.txt
	@for run in 1 2 3 4 5 6; do $(GO) test -run='^$$' -bench=Growth -benchtime=0.2s ./internal/... >>bin/performance.txt || { cat bin/performance.txt; exit 1; }; done
	cd loadtest && $(GO) run ./growth -into ../docs/performance.md <../bin/performance.txt

loadtest: loadtest-programs ## load on a real Pullpass, judged by the service objectives; plots in bin/loadtest/report (LOADTEST='-scale 1 storm')
	bin/loadtest/loadtest $(LOADTEST)

# Times are not judged: a machine that tests is not a quiet one. "compare" measures and judges nothing.
loadtest-smoke: loadtest-programs ## the same in a minute, and only whether the answers are right
	bin/loadtest/loadtest -errors-only -rate 20 -duration 8s -scale 0.01 -window 15s storm flood rotation soak

loadtest-programs:
	@./.ci/install loadtest
	$(GOBUILD) -o bin/loadtest/pullpass ./cmd/proxy
	cd loadtest && CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o ../bin/loadtest/ . ./issuer ./floor ./bareproxy go.k6.io/k6

# Each policy has objects, some with faults, and is judged by definitions that a test writes anew.
random: ## RANDOM (1000000) random policies: decision, explanation, who-can, reach and status agree, and nothing goes beyond a ceiling
	$(GO) test -count=1 -timeout 4h -v -run='^(TestRandomObjects|TestStatusAgreesWithDecisions)$$' ./internal/policy/reach ./internal/controller/objectstatus -random-policies $(RANDOM)

fuzz: ## every fuzz target for FUZZTIME (20s)
	@for package in $$($(GO) list ./...); do \
		targets=$$($(GO) test -list='^Fuzz' $$package) || { echo "$$targets"; exit 1; }; \
		for target in $$(echo "$$targets" | grep '^Fuzz'); do \
			echo "$$package $$target"; \
			$(GO) test -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=10x $$package || exit 1; \
		done; \
	done

lint: ## gofmt, vet, staticcheck, module checksums
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt -w these files:"; echo "$$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) mod verify
	cd e2e && $(GO) vet ./...
	cd e2e/csidriver && $(GO) vet .
	cd loadtest && $(GO) vet ./... && $(GO) tool -modfile=../go.mod staticcheck ./...

build: ## the programs, in bin/
	$(GOBUILD) -o bin/pullpass ./cmd/proxy
	$(GOBUILD) -o bin/pullpass-credential-provider ./cmd/credential-provider
	$(GOBUILD) -o bin/docker-credential-pullpass ./cmd/docker-credential-pullpass

image: ## bin/pullpass-image.tar and SBOMs, for amd64 and arm64, without an engine
	GOOS=linux GOARCH=amd64 $(GOBUILD) -o bin/linux-amd64/pullpass ./cmd/proxy
	GOOS=linux GOARCH=amd64 $(GOBUILD) -o bin/linux-amd64/pullpass-credential-provider ./cmd/credential-provider
	GOOS=linux GOARCH=arm64 $(GOBUILD) -o bin/linux-arm64/pullpass ./cmd/proxy
	GOOS=linux GOARCH=arm64 $(GOBUILD) -o bin/linux-arm64/pullpass-credential-provider ./cmd/credential-provider
	$(GO) run ./deploy/image/roots >bin/ca-certificates.crt
	$(GO) run ./deploy/image -version $(VERSION) -revision $(REVISION) -created $(SOURCE_DATE_EPOCH) -roots bin/ca-certificates.crt \
		bin/linux-amd64/pullpass bin/linux-arm64/pullpass

clean: ## remove bin/
	rm -rf bin
