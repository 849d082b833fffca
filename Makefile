# The verbs. CI calls nothing else. ARGS goes to the program behind a verb: make serve ARGS="--decode 2"

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help install lint format test test-faults test-fuzz test-mutations test-compose serve bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed  ## create .venv with everything pinned (again only when the pins change)

# torch comes first and alone: plain pip takes the build that this machine offers (a CPU build here, CUDA elsewhere).
$(VENV)/.installed: pyproject.toml deploy/constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "Python 3.11 is needed; say where it is: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c deploy/constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --disable-pip-version-check -c deploy/constraints.txt -e '.[worker,dev]'
	@touch $@

lint: install  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install  ## let ruff rewrite what lint complains about
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: install  ## everything that needs no GPU, but for test-faults
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -m "not gpu and not faults" $(ARGS)

test-faults: install  ## kill processes of a whole Baton at the worst moments, and check every answer
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -m faults $(ARGS)

test-mutations: install  ## spoil a copy of the code in known ways, and see that the tests notice
	$(BIN)/python -m tests.faults.mutations $(ARGS)

test-fuzz: install  ## bad input, twenty times as much as make test has, other inputs in every run
	BATON_FUZZ=long OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest tests/fuzz $(ARGS)

test-compose: install  ## the compose file, one of each kind killed amid streams; needs a Docker engine
	$(BIN)/python -m deploy.drill $(ARGS)

serve: install  ## Redis, workers and router with the demo model on http://127.0.0.1:8000
	@exec $(BIN)/baton up $(ARGS)

bench: install  ## measure the router
	$(BIN)/python -m bench $(ARGS)

clean:  ## remove the environment and what the tools leave behind
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
