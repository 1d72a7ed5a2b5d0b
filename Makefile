# make demo   digits seen by a camera, three methods, a verdict, a report, a page to draw on     make test   tests, doctests, linter, type checker
# Both set up what they need in .venv first: the demo what a user needs, the tests the extra dev too.

PYTHON ?= python3
BIN := .venv/bin
# Constraints as variables hold for what builds the package too, in pip 25.3 and later by the second name.
INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check
.PHONY: demo test test-all lint docs results-check results-write bench bench-gpu setup clean

setup: .venv/dev-ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) torch
	$(INSTALL) -e .
	touch $@

.venv/dev-ready: .venv/ready
	$(INSTALL) -e '.[dev]'
	touch $@

# All three runs at once, also on two cores: no core waits while the last one trains.
demo: .venv/ready
	rm -rf out/demo
	$(BIN)/bisnn reproduce table1 --seeds 1 --jobs 3 --pages --out out/demo

test: lint results-check
	$(BIN)/pytest -n 2 -m "not slow"

test-all: lint results-check
	$(BIN)/pytest -n 2

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# The site, in out/docs/html; the notebooks in it run, unless NOTEBOOKS=off. A page that has not changed is not built again: `rm -r out/docs` first for all.
# Notebooks that do not run do not say that their cells are IPython, and not Python.
NOT_RUN := -D nb_execution_mode=off -D suppress_warnings=ref.python,misc.highlighting_failure
docs: .venv/docs-ready
	$(BIN)/sphinx-build -M html docs out/docs --fail-on-warning --keep-going --nitpicky --quiet $(if $(filter off,$(NOTEBOOKS)),$(NOT_RUN))

.venv/docs-ready: .venv/ready
	$(INSTALL) -e '.[docs]'
	touch $@

# Tables in README.md and docs/ against the files of docs/results and benchmarks/results.
results-check: setup
	$(BIN)/python -m bisnn_experiments.tables

results-write: setup
	$(BIN)/python -m bisnn_experiments.tables --write

bench: .venv/ready
	$(BIN)/python benchmarks/cpu.py
	$(BIN)/python benchmarks/packed.py

bench-gpu: .venv/ready
	$(BIN)/python benchmarks/gpu.py

clean:
	rm -rf .venv .venv-peers .pytest_cache .mypy_cache .ruff_cache .hypothesis
