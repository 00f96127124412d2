# Needs Python and make, nothing else: the first command sets up its own environment.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --no-compile -c constraints.txt
READY := $(VENV)/.ready
DEV_READY := $(VENV)/.dev-ready
DOCS_READY := $(VENV)/.docs-ready
SKIPPED := build/skipped-tests.txt
DIGITS := examples.digits.network:digits_net
WEIGHTS := examples/digits/weights.safetensors

# One thread per test process: JOBS of them run side by side. Each collects all tests and converts the
# networks that files share, half a minute; few tests wait. A process keeps the tests of a file together,
# whose fixtures are made once then, until another has nothing left to do.
# Asserts that print their values cost each process 9 s, the first time: what fails runs again with them.
PLAIN := --assert=plain
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Of the sources that pip would compile, a quarter is imported, and compiled then, once.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test pytest matrix floors newest base wheel lint dist docs notebooks clean
.DELETE_ON_ERROR:

help: ## List the commands
	@echo "make COMMAND [PYTHON=python3.11] [VENV=.venv] [JOBS=2]"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1	\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(DEV_READY) ## Make the environment in VENV with all tools; again when versions change

# qtool and what it imports: enough for `make quickstart`.
$(READY): pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "The pinned versions need Python 3.11 or newer; name one with make PYTHON=..."; exit 1; }
	@echo "Setting up $(VENV), once. Most of it is torch: docs/install.md says how to get a small build."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -e '.[torch]'
	@touch $@

$(DEV_READY): $(READY)
	@echo "Adding the tools for tests and checks to $(VENV), once."
	@$(PIP) -e '.[dev]'
	@touch $@

quickstart: $(READY) ## Calibrate, convert and evaluate the sample network
	@$(BIN)/qtool quantize $(DIGITS) --weights $(WEIGHTS) \
		--data calib_data/digits -o reports/digits.int8.onnx
	@$(BIN)/qtool evaluate reports/digits.int8.onnx --model $(DIGITS) --weights $(WEIGHTS) \
		--data examples/digits/eval.npz --labels labels
	@$(BIN)/qtool report reports/digits.int8.onnx --model $(DIGITS) --weights $(WEIGHTS) \
		--data examples/digits/eval.npz --labels labels -o reports/digits

test: $(DEV_READY) ## Run the tests and checks of a change side by side; the slowest go to build/slowest-tests.txt, what skips to build/skipped-tests.txt
	@$(MAKE) --no-print-directory --keep-going --jobs 2 pytest lint

pytest: $(DEV_READY)
	@$(TEST_ENV) SLOWEST_TESTS=build/slowest-tests.txt SKIPPED_TESTS=$(SKIPPED) \
		$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(PLAIN) \
		|| { status=$$?; [ $$status != 1 ] || $(TEST_ENV) $(BIN)/python -m pytest -q --last-failed; exit $$status; }

matrix: $(DEV_READY) ## Walk each pair of a command, a kind of model and a mode; what make test leaves out: pages, also in Chromium, examples, the wheel, families of decoders, random networks, defects of libraries, and what it skipped last
	@$(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup -m matrix tests/matrix
	@$(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m matrix --ignore tests/matrix
	@[ ! -s $(SKIPPED) ] || $(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal @$(SKIPPED) || [ $$? = 5 ]  # 5: all skip

floors: ## Run examples and tests with the oldest versions that qtool works with, on Python 3.10
	@.ci/lane floors

newest: ## The same with the newest versions that pip finds
	@.ci/lane newest

base: $(DEV_READY) ## Install the wheel without torch, on Python 3.10, 3.12 and 3.13 as far as they are here, and test it
	@.ci/lane base

wheel: $(DEV_READY) ## Install the wheel with torch on Python 3.13, as far as that is here, and run the quickstart
	@.ci/lane wheel

lint: $(DEV_READY) ## Run the checks alone: style, types, import layers
	@status=0; \
	$(BIN)/ruff check --output-format concise . || status=1; \
	$(BIN)/mypy || status=1; \
	$(BIN)/lint-imports --no-logo || status=1; \
	exit $$status

dist: $(DEV_READY) ## Build the wheel and the source archive in build/dist, the same bytes everywhere
	@$(BIN)/python .ci/dist build/dist

docs: $(DOCS_READY) ## Build the documentation site in build/site; a dead link or a warning is an error
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site
	@echo "build/site/index.html"

notebooks: $(DOCS_READY) ## Make notebooks of the tutorials in build/notebooks; run them from here
	@$(BIN)/python docs/notebooks.py build/notebooks
	@echo "build/notebooks"

$(DOCS_READY): $(DEV_READY)
	@$(PIP) -qq -e '.[docs]'
	@touch $@

clean: ## Remove the environment, caches and build output; reports stay
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache \
		.hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "clean"
