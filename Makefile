# Two commands do all the set-up: `make run` and `make test`, on Debian, as root.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The machine's own containerd instead of a private one: make run RUNTIME=unix:///run/containerd/containerd.sock
RUNTIME ?=
# End by itself after so many seconds: make run SECONDS=20
SECONDS ?=

# Without bytecode, each worker compiles all tests, and each process of a test compiles the agent.
unexport PYTHONDONTWRITEBYTECODE

# Four workers on two processors, because the slow suites wait for much of their time.
WORKERS ?= 4
WORKED := -n $(WORKERS) --dist loadscope --no-loadscope-reorder
PYTEST := $(BIN)/python -m pytest $(WORKED)

# Without servers, guests and root, and with a tenth of the examples of property tests.
CHECK := $(PYTEST) -m "not long" --fuzz 0.1 tests $(addprefix --ignore=tests/, \
	cgroup cluster critest demo faults integration vm relay/test_fuzz_relay.py relay/test_grpc_go.py)

# Property tests, without those that start servers.
FUZZ := $(BIN)/python -m pytest -n 2 -m hypothesis --fuzz 8 tests \
	$(addprefix --ignore=tests/,cluster integration vm)
RELAY := TOPOLET_FUZZ_STREAMS=40000 $(BIN)/python -m pytest -n 2 tests/relay/test_fuzz_relay.py
PARSERS := $(BIN)/python -m tests.parsers --count 100000 --seed $$$$

# Once for each further version of Kubernetes: the suites that talk to an API server, and a kubelet
# with each runtime.
VERSIONS := $(sort $(patsubst tests/tools/kubernetes-%,%,$(wildcard tests/tools/kubernetes-*)))
VERSION_SUITES := $(addprefix tests/integration/test_, $(addsuffix .py, \
	authorization cluster deploy dra helm kube reinstall rollout versions webhook)) \
	$(addprefix tests/integration/extender/test_, $(addsuffix .py, \
	bind evictor outage scheduler_process scheduler_state))

.PHONY: run run-numa run-cluster check test test-all test-fuzz test-versions test-cluster soak plan-tests \
	prepare-tests all-suites run-soak fuzz versions audit mutants lint lint-types lint-others lock manifests pictures \
	numbers release clean

run: $(VENV)/.run
	@demo/prepare run
	@$(BIN)/python -m demo $(if $(RUNTIME),--runtime $(RUNTIME)) $(if $(SECONDS),--seconds $(SECONDS))

# The same in an emulated machine with four NUMA nodes.
run-numa: $(VENV)/.test
	@demo/prepare run
	@tests/vm/prepare
	@$(BIN)/python -m demo.numa $(if $(SECONDS),--seconds $(SECONDS))

# The same on a whole cluster.
run-cluster: prepare-tests
	@$(BIN)/python -m demo.cluster $(if $(SECONDS),--seconds $(SECONDS))

# Within 150 seconds, for every change.
check: lint $(VENV)/.test
	$(CHECK)

# All that runs within twelve minutes; test-all adds the tests that are marked "long". Tests with
# real programs that fail with others are repeated alone (tests/alone.py); those of
# test-all don't.
test: prepare-tests
	$(BIN)/python -m tests.alone $(WORKED) -m "not long"

# Its five parts run one after the other, also after one has failed.
test-all: ALL := -a
test-all: prepare-tests
	@$(MAKE) --no-print-directory --keep-going all-suites run-soak fuzz versions audit

test-fuzz: prepare-tests fuzz

# A long day on a whole cluster with a guest as its second node: make soak HOURS=24
HOURS ?= 1
soak: prepare-tests run-soak

test-versions: ALL := -a
test-versions: prepare-tests versions

all-suites:
	$(PYTEST)

# Exit code 2: no cluster can run here, for the reason that it prints.
run-soak:
	$(BIN)/python -m tests.soak --hours $(HOURS) || [ $$? = 2 ]

fuzz:
	$(FUZZ)
	$(RELAY)
	$(PARSERS)

versions:
	@failed=; for version in $(VERSIONS); do \
		echo "With Kubernetes $$version:"; \
		TOPOLET_KUBERNETES=$$version $(PYTEST) $(VERSION_SUITES) || failed="$$failed $$version"; \
	done; [ -z "$$failed" ] || { echo "Failed with Kubernetes$$failed"; exit 1; }

# Known vulnerabilities of the dependencies, if a source of them can be reached.
audit: $(VENV)/.audit
	@$(BIN)/python -m tests.audit

# The share of small bugs that the unit suites find: make mutants COUNT=300 SEED=1
COUNT ?= 300
SEED ?= 1
mutants: $(VENV)/.mutants
	$(BIN)/python -m tests.mutants --count $(COUNT) --seed $(SEED)

# A whole cluster, with a guest as its second node.
test-cluster: prepare-tests
	$(BIN)/python -m pytest tests/cluster

# Before anything is installed, the Python packages too.
plan-tests:
	@tests/plan $(ALL) $(PYTHON)

prepare-tests: plan-tests $(VENV)/.test
	@demo/prepare test
	@tests/vm/prepare
	@tests/cluster/prepare
	@tests/tools/prepare $(ALL) $(BIN)/python

# Types on one processor, all else on the other.
lint: $(VENV)/.lint
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint-types lint-others

lint-types:
	$(BIN)/mypy -p agent -p conformance -p demo -p tests.fixtures -m deploy.release -m deploy.render -m deploy.schema

lint-others:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python protos/regenerate.py --check
	$(BIN)/python docs/reference.py --check
	$(BIN)/python deploy/schema.py --check
	$(BIN)/python -m tests.structure

# The manifests for kustomize, from deploy/chart, by Helm 4: make manifests HELM=PROGRAM
HELM ?= helm
manifests:
	$(PYTHON) deploy/render.py --helm $(HELM)

# Of the documents, from what the tools show.
pictures: $(VENV)/.test
	$(BIN)/python -m docs.pictures
	$(BIN)/python -m tests.pictures

# The packages of the image, and those that build the wheel, with hashes.
LOCKED = $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate \
	--upgrade --python-version 3.11

BUILD_REQUIRES = import tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")

lock: $(VENV)/.lock
	@{ echo "# make lock writes it: the packages of the image, for every machine." && \
		$(LOCKED) --extra hookserver pyproject.toml; } >.lock && mv .lock deploy/image/requirements.txt
	@{ echo "# make lock writes it: what builds Topolet's wheel." && \
		$(BIN)/python -c '$(BUILD_REQUIRES)' | $(LOCKED) -; } >.lock && mv .lock deploy/image/build-requirements.txt
	@{ echo "# make lock writes it: the packages of the plugin of kubectl, for every machine." && \
		$(LOCKED) --extra kubeconfig pyproject.toml; } >.lock && mv .lock deploy/plugin/requirements.txt

# The figures of the documents, by their benchmarks, on an idle machine: hours. One: make numbers ONLY=pools
ONLY ?=
numbers: $(VENV)/.test
	$(BIN)/python -m benchmarks.figures $(ONLY)

# Wheel, image for amd64 and arm64, chart, SBOM, provenance and checksums, in dist/.
# Options: make release RELEASE="--no-image"
release: $(VENV)/.run
	$(BIN)/python deploy/release.py $(RELEASE)

clean:
	rm -rf $(VENV) var

$(VENV)/bin/python:
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv; } >/dev/null
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@

$(VENV)/.audit: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test,audit]'
	@touch $@

$(VENV)/.mutants: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test,mutants]'
	@touch $@

$(VENV)/.lock: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[lock]'
	@touch $@

$(VENV)/.lint: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test,lint]'
	@touch $@
