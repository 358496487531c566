# make demo: train on real Wikipedia links for four minutes and ask the model.   make test: all tests but the slow ones.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
READY := $(VENV)/.ready

.PHONY: setup demo quick test slow lint docs corpus clean

# Compiled code is kept: the tests start many processes.
unexport PYTHONDONTWRITEBYTECODE

setup: $(READY)

# The demo and the server need no tools for tests, which take longer to install than all the rest.
$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("superbloom needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[serve]'
	@touch $(BASE)

$(READY): $(BASE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

demo: $(BASE)
	$(BIN)/superbloom demo --overwrite

# The tests of each tier contain those of the one before. Times: CONTRIBUTING.md.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal --durations 10 --durations-min 0.1

quick: $(READY)
	$(PYTEST) -m 'not system and not slow and not alone'

test: $(READY) lint
	$(PYTEST)

slow: $(READY) lint
	SUPERBLOOM_CASES=10000 $(PYTEST) -m 'not alone'
	$(BIN)/python -m pytest -m alone

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as a site, in site/; tests/project/test_docs.py also builds it. Not --quiet: it hides warnings from --strict.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Rebuild the built-in corpus from the first 100 MB of the English Wikipedia dump of 2006-03-03 (enwik8).
corpus: $(READY)
	$(BIN)/python -m superbloom.prepare.bundled $(ENWIK8)

clean:
	rm -rf $(VENV) superbloom-demo superbloom-demo.run site .mypy_cache .ruff_cache .pytest_cache .hypothesis
