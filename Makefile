.DEFAULT_GOAL := help
.PHONY: help demo test test-rest test-full test-slow test-breaks test-matrix format lint bench clean
SHELL := bash

BIN := .venv/bin
# The tests of one file share compiled functions, so a file stays on one worker.
PYTEST := -m pytest -n 2 --dist loadfile

NEWEST_JAX := $(shell sed -n 's/^jax==\([^ ;]*\).*/\1/p' constraints.txt | sort -V | tail -1)
MATRIX := 3.11-0.10.2 3.12-0.11.2 3.12-$(NEWEST_JAX)

# $(call find_python,TEST,CANDIDATES): $$python becomes the first candidate whose
# minor version passes TEST, or empty. Candidates are run, not just looked up: a
# pyenv shim can be on PATH and still fail.
define find_python
python=; \
for candidate in $(2); do \
  python=$$("$$candidate" -c 'import sys; minor = sys.version_info[1]; print(sys.executable if $(1) else "")' 2>/dev/null) || python=; \
  if [ -n "$$python" ]; then break; fi; \
done
endef

# $(call make_venv,FOLDER): an empty environment made by $$python, and in $$install
# the command that installs into it.
define make_venv
rm -rf $(1); \
if uv --version >/dev/null 2>&1; then \
  uv venv --quiet --python "$$python" $(1); \
  install="uv pip install --quiet --python $(1)/bin/python"; \
else \
  "$$python" -m venv $(1); \
  install="$(1)/bin/python -m pip install --quiet --disable-pip-version-check"; \
fi
endef

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.stamp ## Train a private model on 8 virtual devices, and write its report
	@$(BIN)/bevel demo

# Runs compile the same programs again and again: a cache on disk, where it is asked for.
CACHED := JAX_COMPILATION_CACHE_DIR=$(CURDIR)/build/compiled \
  JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1

test: .venv/.stamp ## Run the fast tests (ROOM=clipping: of one package and what imports it)
ifdef ROOM
	$(CACHED) $(BIN)/python $(PYTEST) --fast $$($(BIN)/python tests/rooms.py $(ROOM))
else
	$(BIN)/python $(PYTEST) --fast
endif

test-rest: .venv/.stamp ## Run the tests that `make test` leaves out
	$(BIN)/python $(PYTEST) --rest

test-full: .venv/.stamp ## Run all tests, with all parametrized cases
	$(BIN)/python $(PYTEST)

test-slow: .venv/.stamp ## Kill 100 training runs at random moments, and resume them
	BEVEL_KILLS=100 $(CACHED) \
	  $(BIN)/python -m pytest tests/training/test_training_survives_kills.py

test-breaks: .venv/.stamp ## Break promises one by one, and check that the fast tests notice
	$(CACHED) $(BIN)/python tests/breaks.py

test-matrix: $(MATRIX:%=.venv-matrix-%/.stamp) ## Run all tests on every supported Python and jax
	@set -e; for pair in $(MATRIX); do \
	  echo "== Python $${pair%%-*}, jax $${pair#*-}"; \
	  BEVEL_FULL_MATRIX=1 .venv-matrix-$$pair/bin/python $(PYTEST); \
	done

format: .venv/.stamp ## Format the code and sort imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: .venv/.stamp ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.stamp ## What clipping costs beside jax.grad, at small sizes
	$(BIN)/python benchmarks/clipping.py

clean: ## Remove environments, caches and build outputs
	rm -rf .venv .venv-matrix-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.stamp: pyproject.toml constraints.txt
	@set -e; \
	$(call find_python,minor == 12,python3.12 ~/.pyenv/versions/3.12*/bin/python); \
	if [ -z "$$python" ]; then \
	  $(call find_python,minor >= 11,python3 python3.11); \
	fi; \
	if [ -z "$$python" ]; then \
	  echo "bevel needs Python 3.11 or newer; python3 is: $$(python3 --version 2>&1)" >&2; \
	  exit 1; \
	fi; \
	echo "Setting up .venv ($$("$$python" --version))"; \
	$(call make_venv,.venv); \
	$$install -c constraints.txt -e '.[train,test,lint]'
	@touch $@

# The stem is PYTHON-JAX; its jax takes the place of the pinned one.
.venv-matrix-%/.stamp: PY = $(word 1,$(subst -, ,$*))
.venv-matrix-%/.stamp: JAX = $(word 2,$(subst -, ,$*))
.venv-matrix-%/.stamp: pyproject.toml constraints.txt
	@set -e; \
	$(call find_python,minor == $(PY:3.%=%),python$(PY) ~/.pyenv/versions/$(PY)*/bin/python python3); \
	if [ -z "$$python" ]; then \
	  echo "test-matrix needs Python $(PY), and no python$(PY) here runs" >&2; \
	  exit 1; \
	fi; \
	echo "Setting up $(@D)"; \
	$(call make_venv,$(@D)); \
	{ grep -Ev '^jax(lib)?==' constraints.txt; printf '%s\n' jax==$(JAX) jaxlib==$(JAX); } \
	  > $(@D)/constraints.txt; \
	$$install -c $(@D)/constraints.txt -e '.[test]'
	@touch $@
