# Everything happens in .venv, made on the first call: `make run` to watch, `make test` to check.
# PYTHON=/path/to/python names the interpreter to make it with, ARGS="..." are handed on to kvtop or pytest.

PY := .venv/bin/python
ARGS ?=
OUT ?= results/example

.DEFAULT_GOAL := help
.PHONY: help run test test-slow test-nightly check format bench bench-peers setup setup-dev clean

help:  ## this text
	@sed -n 's/^\([a-z-]*\):.*  ## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

run: setup  ## set everything up, then watch the default model serve a recorded trace
	@$(PY) -m kvtop $(ARGS)

test: setup-dev  ## set everything up, then run the tests
	@$(PY) -m pytest $(ARGS)

test-slow: setup-dev  ## the tests that take minutes
	@$(PY) -m pytest -m slow --timeout 1200 $(ARGS)

test-nightly: setup-dev  ## a million random operations on pool and prefix tree (an hour or more)
	@$(PY) -m pytest -m nightly $(ARGS)

check: setup-dev  ## lint, format, types, layering and all tests
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m pyright --pythonpath $(PY)
	$(PY) -m pytest $(ARGS)

format: setup-dev  ## put the code into the house's format
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

bench: setup  ## two policies on the shipped trace, side by side (OUT=results/example)
	@$(PY) -m kvtop bench -w mooncake-conversation -p fcfs -p lpm --limit 64 --length-scale 0.0625 -o $(OUT) $(ARGS)

bench-peers: setup  ## this machine's limits, then the same requests through kvtop and its peers (many minutes)
	@$(PY) tests/perf/peers $(ARGS)

setup:  ## only make .venv ready
	@.ci/setup run

setup-dev:
	@.ci/setup dev

clean:  ## remove .venv and what building and checking left behind (results stay)
	rm -rf .venv build dist *.egg-info .ruff_cache .pytest_cache .hypothesis
	find kvtop engine kernels workloads tests -name __pycache__ -type d -prune -exec rm -rf {} +
