# The verbs. CI calls nothing else. ARGS goes to the program behind a verb: make serve ARGS="--decode 2"

# The first that runs: a shim of a version manager may be there for a Python that is not.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c '' 2> /dev/null && command -v $$python && break; done)
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
QUIETLY := "$(PYTHON)" deploy/quietly.py
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c deploy/constraints.txt

# Tests and workers are hundreds of processes: where the environment says to keep no bytecode, each of them would compile
# all modules again, which is a third of what make test takes.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install compiled lint format test test-compiled test-gpu test-vllm test-faults test-fuzz test-mutations test-compose test-install test-clients serve bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed  ## create .venv with everything pinned (again only when the pins change)

# What serving needs. torch comes first and alone: plain pip takes the build that this machine offers (a CPU build here,
# CUDA elsewhere).
$(VENV)/.serving: pyproject.toml deploy/constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "Python 3.11, 3.12 or 3.13 is needed; say where it is: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(QUIETLY) "creating $(VENV)" "$(PYTHON)" -m venv $(VENV)
	@$(QUIETLY) "installing PyTorch" $(PIP) torch==2.13.0
	@$(QUIETLY) "installing what serving needs" $(PIP) -e '.[worker]'
	@touch $@

$(VENV)/.installed: $(VENV)/.serving
	@$(QUIETLY) "installing what tests and tools need" $(PIP) -e '.[worker,dev,bench]'
	@touch $@

lint: install  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install  ## let ruff rewrite what lint complains about
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Most tests wait most of the time, so two processes use two cores; those of one file stay together and share what they
# started. ARGS="-n 0" is one process, for a debugger.
QUICK := -m "not gpu and not slow and not faults and not vllm" -n auto --maxprocesses 4 --dist loadfile
test: install  ## everything that needs no GPU, but for what test-faults has
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest $(QUICK) $(ARGS)

# A copy in build/compiled: beside the sources here the compiled modules would be what everything runs.
compiled: install  ## a copy of this checkout with the hot modules of the router compiled, in build/compiled
	@$(QUIETLY) "compiling the hot modules in build/compiled" $(BIN)/python deploy/compiled_tree.py

COMPILED_TESTS ?= tests/core/net tests/core/protocol tests/router tests/fuzz tests/deploy/test_compiled.py
test-compiled: compiled  ## the tests of the router over its compiled modules
	cd build/compiled && BATON_COMPILED=1 OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} "$(abspath $(BIN))/python" -m pytest \
		$(QUICK) $(COMPILED_TESTS) $(ARGS)

test-faults: install  ## the long tests, and those that kill processes of a whole Baton and check every answer
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -m "(slow or faults) and not gpu and not vllm" $(ARGS)
	$(if $(ARGS),,BATON_FUZZ=all OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest $(QUICK) tests/fuzz)

# An environment with vLLM that is there already: make test-vllm VLLM_VENV=/path/to/it. A part of the tests:
# make test-vllm VLLM_TESTS=tests/vllm/test_answers.py
VLLM_VENV  ?= .venv-vllm
VLLM_TESTS ?= tests/vllm
.venv-vllm/.installed: deploy/vllm_environment.py pyproject.toml
	@$(QUIETLY) "installing vLLM into .venv-vllm (minutes, 4 GB)" "$(PYTHON)" deploy/vllm_environment.py .venv-vllm
	@touch $@

test-vllm: install $(if $(filter .venv-vllm,$(VLLM_VENV)),.venv-vllm/.installed)  ## Baton in front of vLLM servers, on CPUs; installs vLLM
	TEST_VLLM="$(abspath $(VLLM_VENV))" $(BIN)/python -m pytest -m vllm $(VLLM_TESTS) $(ARGS)

# torch's builds for CUDA bring the Triton that fits them.
test-gpu: install  ## tests marked gpu, and GPU programs, which need no GPU under Triton's interpreter
	@$(BIN)/python -c 'import triton' 2> /dev/null || $(QUIETLY) "installing Triton" $(PIP) 'triton>=3.7,<4'
	$(BIN)/python -m pytest tests/workers/rank tests/workers/rank_group tests/bench/gpu tests/bench/block_reads \
		tests/end_to_end/test_on_a_gpu.py $(ARGS)

test-clients: install  ## the clients people use, newest versions in environments of their own; needs a package index
	$(BIN)/python -m tests.clients $(ARGS)

test-mutations: install  ## spoil a copy of the code in known ways, and see that the tests notice
	$(BIN)/python -m tests.faults.mutations $(ARGS)

test-fuzz: install  ## bad input, forty times as much as make test has, other inputs in every run
	BATON_FUZZ=long OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest tests/fuzz $(ARGS)

test-compose: install  ## the compose file, one of each kind killed amid streams; needs a Docker engine
	$(BIN)/python -m deploy.drill $(ARGS)

test-install: install  ## the wheel in empty environments; PYTHONS="python3.11 python3.13" for others
	$(BIN)/python -m deploy.try_install $(ARGS) $(PYTHONS)

serve: $(VENV)/.serving  ## Redis, workers and router with the demo model on http://127.0.0.1:8000
	@exec $(BIN)/baton up $(ARGS)

# What compares with vLLM needs an environment that has it: make .venv-vllm/.installed, or VLLM_VENV=/path/to/it.
# A part: make bench ARGS="--only router --runs 5"; the page of what was measured before: make bench ARGS=--page-only
bench: install  ## measure everything (about an hour) and write docs/performance.md
	$(BIN)/python -m bench $(if $(wildcard $(VLLM_VENV)/.installed),--vllm "$(abspath $(VLLM_VENV))") $(ARGS)

clean:  ## remove the environment and what the tools leave behind
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
