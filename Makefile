# make demo   train on two moons and draw the result     make test   tests, doctests, linter, type checker
# Both set up everything they need in .venv first.

PYTHON ?= python3
BIN := .venv/bin
.PHONY: demo test test-all lint bench setup clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/python examples/two_moons.py

test: lint
	$(BIN)/pytest -n 2 -m "not slow"

test-all: lint
	$(BIN)/pytest -n 2

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: setup
	$(BIN)/python benchmarks/iteration.py

clean:
	rm -rf .venv .venv-peers out .pytest_cache .mypy_cache .ruff_cache .hypothesis
