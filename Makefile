# Every target builds its own environment from nothing: Python 3.11 or newer and make are all it takes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Byte code is made when it is needed: to make all of it takes longer than the installation.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: test test-slow test-all test-portable lint format docs linkcheck bench soak demo clean

PYTEST := $(BIN)/python -m pytest -n 2 --durations=10

test: $(VENV)/.dev
	$(PYTEST) -m "not slow" tests

# Full-length trainings, the mass tests, the slowest parametrisations and second precisions.
test-slow: $(VENV)/.dev
	$(PYTEST) -m slow tests

test-all: test test-slow

# What another processor rounds otherwise, and other random numbers, must change no verdict.
test-portable: $(VENV)/.dev
	for setting in ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=COMPATIBLE RESOLVENT_TEST_SEED=1; do \
		echo "with $$setting"; env $$setting $(PYTEST) -m "not slow" tests || exit 1; \
	done

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	# Its program is fetched from npm, which is not everywhere within reach.
	if $(BIN)/pyright --version > /dev/null 2>&1; then $(BIN)/pyright --pythonpath $(BIN)/python; else echo "no pyright"; fi
	$(BIN)/lint-imports
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md docs src examples tests benchmarks

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "open build/docs/index.html"

# Asks every address that the documentation names: needs a network.
linkcheck: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -b linkcheck docs build/linkcheck

bench: $(VENV)/.dev build/peers build/jax
	PYTHONPATH=tests $(BIN)/python benchmarks/solvers.py --write
	PYTHONPATH=tests:build/peers $(BIN)/python benchmarks/odeint.py --write
	PYTHONPATH=build/peers $(BIN)/python benchmarks/equilibrium.py --write
	PYTHONPATH=build/peers $(BIN)/python -m resolvent_lab bench --rows B1,B2,B3,B5,B6,B7,B8,B9,B10 \
		--peers torchdeq,torchdeq_linear,torchdiffeq,jax --out build/bench --write docs/speed.md

build/peers:
	$(PIP) --no-deps --target $@ torchdeq==0.1.0 torchdiffeq==0.2.5

build/jax:
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check diffrax==0.7.2 optimistix==0.1.0

# A million hostile solves and ten thousand steps of training on hostile batches: about an hour.
soak: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python benchmarks/soak.py --write

demo: $(VENV)/.experiments
	$(BIN)/python -m resolvent_lab reproduce all --quick --out build/demo

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.experiments: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e ".[experiments]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt $(VENV)/.dev
	$(PIP) -e ".[docs]"
	@touch $@
