.POSIX:

GO = go
FUZZTIME = 20s
RANDOM = 1000000
NEIGHBOURS = 1000
SIMULATE = 168h
CHAOS = 1h
SEED = 1000
READERS = all
SECRETS = $$($(GO) list ./... | grep -v '/releasetest$$')
BENCHCOUNT = 6
# Not policy/diff: most of its conditions choose words, examples and short cuts. "make random" holds it to Decide.
MUTANTS = ./internal/oidc/... $$($(GO) list ./internal/policy/... | grep -v /diff$$) ./internal/exchange/... ./internal/registryauth/... ./internal/refusal ./internal/gateway/... ./internal/node/... ./internal/pullsecrets/...
VERSION = $$(git describe --tags --always --dirty 2>/dev/null || echo devel)
REGISTRY = ghcr.io/pullpass
REVISION = $$(git rev-parse HEAD 2>/dev/null || echo unknown)
SOURCE_DATE_EPOCH = $$(git log -1 --format=%ct 2>/dev/null || echo 0)
# With more memory, the compiler takes a fifth less time. Programs that run keep Go's default.
COMPILE = GOGC=400 $(GO) list -export -deps -test
# Nothing of the machine, of the directory or of the time is in a program: the Dockerfile builds the same.
GOBUILD = GOGC=400 CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)"

# Where there is a file system in memory, on that: thousands of runs sync what they write. The test alone, for nothing may be executed from /dev/shm in containers.
CRASH = $(GO) test -exec "env GOTMPDIR=$$(test -w /dev/shm && echo /dev/shm || echo /tmp)" -count=1 -timeout 3h -run='^TestCrash$$' ./internal/node/nodeinstall

.PHONY: help demo check test fips docs e2e readers release-test secrets crash node-up node-shell node-down bench bench-plugin performance random conformance neighbours simulate chaos loadtest loadtest-smoke loadtest-programs fuzz mutants mutants-changed cross lint build image release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' Makefile

demo: ## the whole flow on this machine, nothing to install
	$(GO) run ./cmd/demo

# The rules and the image are computed by one goroutine, where the race detector costs four times the time and finds nothing.
test: ## unit tests with the race detector, and the project's own rules
	@./.ci/install test
	@GOGC=400 CGO_ENABLED=0 $(GO) build -trimpath ./cmd/proxy ./cmd/docker-credential-pullpass # tests build them, within their time limit
	@$(COMPILE) . ./deploy/image >/dev/null
	$(GO) test . ./deploy/image
	@$(COMPILE) -race ./... >/dev/null
	$(GO) test -race $$($(GO) list ./... | grep -v -x -e "$$($(GO) list .)" -e '.*/deploy/image')
	cd loadtest && $(GO) test -race ./...

# The clock of synctest gives the module no entropy, and keys that the mode does not allow are refused by another text: those tests are left out.
fips: ## tests of tokens, signing and exchanges, and the demo, with nothing but FIPS 140-3 cryptography (GODEBUG=fips140=only), in a minute
	@./.ci/install test
	GODEBUG=fips140=only $(GO) test -count=1 -skip='^(TestKeySets|TestCorpusOfKeySets|TestRunReadsTheFileAgain|TestDistributionHonoursTheTimes|TestBackgroundRefresh|TestFetchFirstWaitsForARunningFetch|TestFewTokensWaitForAHangingIssuer|TestWaitForAFetchIsBounded)$$' \
		./internal/registryauth ./internal/registryauth/assertion ./internal/registryauth/seal ./internal/oidc/... ./internal/exchange/...
	GODEBUG=fips140=only $(GO) test -count=1 -run='WithOnlyFIPS$$' ./internal/registryauth/signing ./internal/state
	GODEBUG=fips140=only $(GO) run ./cmd/demo

docs: ## docs/reference/metrics.md, the reasons in docs/reference/audit.md, and the JSON Schemas and CustomResourceDefinitions of what people write, from the code
	$(GO) test -count=1 -run='^TestMetricsDocument$$' ./internal/server/metrics -update-metrics
	$(GO) test -count=1 -run='^TestSchema$$' ./internal/config ./internal/policy ./internal/policy/policytest -update-schema
	$(GO) test -count=1 -run='^TestCustomResourceDefinitions$$' ./internal/policy/policyobjects -update-crds
	$(GO) test -count=1 -run='^TestReasonsDocument$$' ./cmd/proxy -update-reasons

# Tests of nodes mostly wait, and chaostest allows for a busy machine, so they run beside the others. releasetest has a target of its own.
BESIDE = ./rollouttest ./chaostest ./nodetest ./podtest ./criotest ./troubletest ./upgradetest
e2e: ## tests with the real API server, registries and clients (root: installs Debian packages)
	@./.ci/install e2e
	$(CRASH) -crash-every 80
	@cd e2e && $(COMPILE) ./... >/dev/null
	cd e2e && others=$$($(GO) list ./... | grep -v -x -e '.*/releasetest' -e "$$($(GO) list $(BESIDE))") && { \
		$(GO) test -count=1 -p 1 -timeout 60m $(BESIDE) & \
		$(GO) test -count=1 -p 1 -timeout 60m $$others; status=$$?; \
		wait $$! && exit $$status; }

# "make e2e" has crane, skopeo, oras, helm and BuildKit of them.
readers: ## scanners, verifiers and controllers read images in pods: docs/how-to/readers.md (READERS=cosign,syft: these; half an hour, since it builds them, the first time)
	@./.ci/install e2e
	cd e2e && $(GO) test -count=1 -v -timeout 2h -run='^TestReaders$$' ./podtest -args -readers $(READERS)

release-test: ## "make release", pushed to a registry, and verified and installed from there: half an hour, since it builds for nine platforms
	cd e2e && $(GO) test -count=1 -v -timeout 2h ./releasetest

# The helpers of tests note the credentials that they make and receive, and copy the output of programs: e2e/secrets says how.
secrets: ## tests, demo and SECRETS (all packages of e2e) run, and all that they wrote searched for each of their credentials
	@./.ci/install e2e
	@rm -rf bin/secrets && mkdir -p bin/secrets/seen
	@export PULLPASS_CAPTURE=$$PWD/bin/secrets; seen=$$PULLPASS_CAPTURE/seen status=0; \
		$(GO) test -count=1 -v ./... >$$seen/unit.log 2>&1 || { echo "unit tests failed: bin/secrets/seen/unit.log"; status=1; }; \
		$(GO) run ./cmd/demo >$$seen/demo.log 2>&1 || { echo "the demo failed: bin/secrets/seen/demo.log"; status=1; }; \
		cd e2e; \
		test -z "$(SECRETS)" || $(GO) test -count=1 -v -p 1 -timeout 60m $(SECRETS) >$$seen/e2e.log 2>&1 || { echo "end-to-end tests failed: bin/secrets/seen/e2e.log"; status=1; }; \
		$(GO) run ./secrets/search $$PULLPASS_CAPTURE && exit $$status

crash: ## "pullpass node-install" killed at each file operation, and without room for each write; make e2e has a sample of it
	@./.ci/install e2e
	$(CRASH) -crash-every 1

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
	$(GO) tool benchstat -filter='.name:Exchange' -col='/exchange@(floor first repeated mix first-with-trial repeated-with-trial)' bin/bench.txt
	$(GO) tool benchstat -filter='-.name:Exchange' bin/bench.txt

bench-plugin: ## start-up time and size of the kubelet plugin, against a program that does only the JSON
	@mkdir -p bin
	$(GO) test -run='^$$' -bench=Start -count=$(BENCHCOUNT) ./cmd/credential-provider >bin/bench-plugin.txt || { cat bin/bench-plugin.txt; exit 1; }
	$(GO) tool benchstat -col='/program@(floor plugin)' bin/bench-plugin.txt

# The runs are apart, so that what else the machine does in a minute does not fall on one number alone.
performance: ## docs/internals/performance.md: what an exchange costs beside more and more rules, clusters, pods, identities
	@mkdir -p bin
	@rm -f bin/performance.txt
	@for run in 1 2 3 4 5 6; do $(GO) test -run='^$$' -bench=Growth -benchtime=0.2s ./internal/... >>bin/performance.txt || { cat bin/performance.txt; exit 1; }; done
	cd loadtest && $(GO) run ./growth -into ../docs/internals/performance.md <../bin/performance.txt

ifeq ($(LOADTEST),pull)
loadtest:
	@./.ci/install e2e
	cd e2e && $(GO) test -count=1 -v -timeout 2h ./pulltest -args -pull-turns 5
else
loadtest: loadtest-programs ## load on a real Pullpass, judged by the service objectives; plots in bin/loadtest/report (LOADTEST='-scale 1 storm'; LOADTEST=pull: whole pulls by containerd)
	bin/loadtest/loadtest $(LOADTEST)
endif

# Times are not judged: a machine that tests is not a quiet one. "compare" measures and judges nothing.
loadtest-smoke: loadtest-programs ## the same in a minute, and only whether the answers are right
	bin/loadtest/loadtest -errors-only -rate 20 -duration 8s -scale 0.01 -window 15s storm flood rotation soak

loadtest-programs:
	@./.ci/install loadtest
	$(GOBUILD) -o bin/loadtest/pullpass ./cmd/proxy
	cd loadtest && GOGC=400 CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o ../bin/loadtest/ . ./issuer ./floor ./bareproxy go.k6.io/k6

# Each policy has objects, some with faults, and is judged by definitions that a test writes anew.
random: ## RANDOM (1000000) random policies: decision, explanation, who-can, reach, diff and status agree, and nothing goes beyond a ceiling
	$(GO) test -count=1 -timeout 4h -v -run='^(TestDecideAgainstReference|TestRandomObjects|TestStatusAgreesWithDecisions|TestDiffAgainstBruteForce)$$' ./internal/policy ./internal/policy/reach ./internal/policy/diff ./internal/cluster/objectstatus -random-policies $(RANDOM)

conformance: ## the OCI conformance suite of SUITE (the directory conformance of opencontainers/distribution-spec): it passes through Pullpass as it does directly
	@./.ci/install e2e
	cd e2e && $(GO) test -count=1 -v -timeout 60m -tags conformance -run='^TestConformance$$' . -suite "$(SUITE)"

neighbours: ## each answer that one repository can give, beside NEIGHBOURS (1000) requests of another caller
	$(GO) test -count=1 -timeout 4h -v -run='^TestNeighbours$$' ./internal/gateway -neighbour-requests $(NEIGHBOURS)

simulate: ## SIMULATE (168h) of many replicas in virtual time, from SEED (1000) on: faults of all kinds, and an oracle
	$(GO) test -count=1 -timeout 24h -v -run='^TestSimulation$$' ./internal/simulation -simulate-seed $(SEED) -simulate-for $(SIMULATE)

chaos: ## CHAOS (1h) of three real replicas with a real Redis under load, from SEED (1000): faults of all kinds, and an oracle (root)
	@./.ci/install e2e
	cd e2e && $(GO) test -count=1 -timeout 25h -v ./chaostest -chaos-seed $(SEED) -chaos-for $(CHAOS)

fuzz: ## every fuzz target for FUZZTIME (20s)
	@for package in $$($(GO) list ./...); do \
		targets=$$($(GO) test -list='^Fuzz' $$package) || { echo "$$targets"; exit 1; }; \
		for target in $$(echo "$$targets" | grep '^Fuzz'); do \
			echo "$$package $$target"; \
			$(GO) test -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=10x $$package || exit 1; \
		done; \
	done

# Those that may survive are in internal/test/mutants/listed.txt, each with its reason.
mutants: ## conditions, limits and reasons of refusals of MUTANTS (./internal/oidc/...) changed, one at a time: a test must fail
	$(GO) run ./internal/test/mutants $(MUTANTS)

mutants-changed: ## the same on changed lines alone, and for three minutes at most
	$(GO) run ./internal/test/mutants -changed -for 3m $(MUTANTS)

PROGRAMS = ./cmd/proxy ./cmd/kubectl-pullpass ./cmd/credential-provider ./cmd/docker-credential-pullpass
cross: ## the programs compile for Windows and macOS
	GOOS=windows CGO_ENABLED=0 $(GO) build $(PROGRAMS)
	GOOS=darwin CGO_ENABLED=0 $(GO) build $(PROGRAMS)

# Exceptions are beside the code, with a reason; .golangci.yaml says which linters.
lint: ## gofmt, golangci-lint, actionlint, govulncheck, module checksums
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt -w these files:"; echo "$$unformatted"; exit 1; }
	$(GO) mod verify
	GOGC=400 $(GO) tool -modfile=.ci/tools.mod golangci-lint run ./...
	cd e2e && GOGC=400 $(GO) tool -modfile=../.ci/tools.mod golangci-lint run -c ../.golangci.yaml --disable gosec ./...
	cd e2e/csidriver && $(GO) vet .
	cd credential/containers && $(GO) vet .
	cd credential/ggcr && $(GO) vet .
	cd credential/oras && $(GO) vet .
	cd loadtest && GOGC=400 $(GO) tool -modfile=../.ci/tools.mod golangci-lint run -c ../.golangci.yaml --disable gosec ./...
	$(GO) tool -modfile=.ci/actionlint.mod actionlint
	@./.ci/vulnerabilities

# Go's cache has the results of packages that did not change, and whose files and imports did not.
check: ## before a commit, in a minute: gofmt, golangci-lint, and the unit tests of changed packages, without the race detector
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt -w these files:"; echo "$$unformatted"; exit 1; }
	GOGC=400 $(GO) tool -modfile=.ci/tools.mod golangci-lint run ./...
	$(GO) test ./...

build: ## the programs, in bin/
	$(GOBUILD) -o bin/pullpass ./cmd/proxy
	$(GOBUILD) -o bin/pullpass-credential-provider ./cmd/credential-provider
	$(GOBUILD) -o bin/docker-credential-pullpass ./cmd/docker-credential-pullpass
	$(GOBUILD) -o bin/kubectl-pullpass ./cmd/kubectl-pullpass

image: ## bin/pullpass-image.tar and SBOMs, for amd64 and arm64, without an engine
	GOOS=linux GOARCH=amd64 $(GOBUILD) -o bin/linux-amd64/pullpass ./cmd/proxy
	GOOS=linux GOARCH=amd64 $(GOBUILD) -o bin/linux-amd64/pullpass-credential-provider ./cmd/credential-provider
	GOOS=linux GOARCH=arm64 $(GOBUILD) -o bin/linux-arm64/pullpass ./cmd/proxy
	GOOS=linux GOARCH=arm64 $(GOBUILD) -o bin/linux-arm64/pullpass-credential-provider ./cmd/credential-provider
	$(GO) run ./deploy/image/roots >bin/ca-certificates.crt
	$(GO) run ./deploy/image -version $(VERSION) -revision $(REVISION) -created $(SOURCE_DATE_EPOCH) -roots bin/ca-certificates.crt \
		bin/linux-amd64/pullpass bin/linux-arm64/pullpass

# VERSION is without v. RELEASE='-sign cosign.key -push' signs and pushes: docs/internals/releasing.md. Go is that of the Dockerfile, for the same bytes.
release: ## everything of a release, in bin/release: VERSION=0.1.0, and what RELEASE adds; the same commit gives the same bytes
	GOTOOLCHAIN=go$$(sed -n 's/^ARG GO_IMAGE=golang://p' Dockerfile) $(GO) run ./deploy/release -version "$(VERSION)" -registry $(REGISTRY) $(RELEASE)

clean: ## remove bin/
	rm -rf bin
