PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/pip --disable-pip-version-check

.PHONY: install browser demo test lint pytest fuzz mutants hostile bench docs clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT= $(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: install
	$(BIN)/fedloom compare fedavg local central --data digits --clients 20 --partition dirichlet --alpha 0.3 \
	  --rounds 30 --repeats 3 --out runs/demo --force

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests of pages want a browser: on Debian it is installed where that is allowed, elsewhere they say why they skip.
browser:
	@if ! { command -v chromium || command -v chromium-browser || command -v google-chrome; }; then \
	  if command -v apt-get && [ "$$(id -u)" = 0 ]; then \
	    apt-get update -qq && apt-get install -qq --yes --no-install-recommends chromium; \
	  fi; \
	fi >/dev/null || echo "Chromium could not be installed: the tests of pages are skipped"

test: install browser
	$(MAKE) --no-print-directory -j 2 lint pytest

# Four processes share the cores: none of them, nor what they start, needs threads of its own, and workers of Ray, which
# otherwise make way for everybody else, would starve beside them while Ray's own services run on. Hundreds of processes
# read the same modules, so these are kept compiled, whatever the environment says.
pytest: install
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 RAY_worker_niceness=0 $(BIN)/python -m pytest -n 4 --dist worksteal -q

# Thousands of strange settings, data files and run folders, of which `make test` has some: FUZZ_COUNT of each kind by
# FUZZ_SEED, and with FUZZ_CASE=NUMBER one alone.
fuzz: install
	FUZZ_COUNT=$${FUZZ_COUNT:-2000} OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s tests/fuzz

# Every method with one fault after the other: each must fail a check of the conformance kit.
mutants: install
	OMP_NUM_THREADS=1 $(BIN)/fedloom check --mutants

# A fleet of real nodes, of which two are hostile in every way that the tests know: some minutes.
hostile: install
	$(BIN)/python tests/deploy/hostile_fleet.py

bench: install
	$(BIN)/python -m benchmarks

docs: install
	PIP_CONSTRAINT= $(PIP) install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/build.py

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
