# Two commands do all the set-up: `make run` and `make test`, on Debian, as root.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The machine's own containerd instead of a private one: make run RUNTIME=unix:///run/containerd/containerd.sock
RUNTIME ?=
# End by itself after so many seconds: make run SECONDS=20
SECONDS ?=

.PHONY: run test lint clean

run: $(VENV)/.run
	@demo/prepare run
	@$(BIN)/python -m demo $(if $(RUNTIME),--runtime $(RUNTIME)) $(if $(SECONDS),--seconds $(SECONDS))

test: $(VENV)/.test
	@demo/prepare test
	@tests/vm/prepare
	@tests/tools/prepare $(BIN)/python
	$(BIN)/python -m pytest

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy demo
	$(BIN)/lint-imports
	$(BIN)/python protos/regenerate.py --check
	$(BIN)/python docs/reference.py --check

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

$(VENV)/.lint: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test,lint]'
	@touch $@
