# make demo   train, attack and compare on the data that ships with the package (TORCH=cuda or TORCH=cpu: which torch)
# make check  lint, types and the fast laws: while you work
# make test   lint, types and all tests but the slow guards: before you push
# make test-all   the slow guards too, and the report in Chromium, which is installed if need be (Debian)
# make docs   the documentation as a site, site/index.html; a warning is an error
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
DEMO_STAMP := .venv/.installed-demo
DOCS_STAMP := .venv/.installed-docs
INSTALL := PYTHON=$(PYTHON) TORCH=$(TORCH) bash tools/install.sh .venv

# One more than two cores: tests that start processes, wait for them and kill them leave a core idle.
WORKERS ?= 3
# Ray gives up on a cluster that is slow to start, as it is beside other tests.
ALONE := tests/runs/test_sweep_ray.py
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal

.PHONY: demo check lint types laws test test-all docs setup clean FORCE
demo: $(DEMO_STAMP)
	$(BIN)/worstclass demo --out demo

check: $(STAMP)
	$(MAKE) --no-print-directory -j 2 lint types laws

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

laws: $(STAMP)
	$(PYTEST) -m fast

test: lint types
	$(PYTEST)

test-all: lint types $(DOCS_STAMP)
	bash tools/install_browser.sh
	BROWSER=required $(PYTEST) --full --ignore $(ALONE)
	OMP_NUM_THREADS=1 $(BIN)/pytest --full $(ALONE)

# The theme's notice on another version of mkdocs is no warning on these pages.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

setup: $(STAMP)

# The package alone, and with the test tools; TORCH=... installs again.
$(DEMO_STAMP): pyproject.toml constraints.txt tools/install.sh $(if $(TORCH),FORCE)
	$(INSTALL)
	touch $@

$(STAMP): pyproject.toml constraints.txt tools/install.sh $(if $(TORCH),FORCE)
	$(INSTALL) test
	touch $@ $(DEMO_STAMP)

$(DOCS_STAMP): $(STAMP)
	$(INSTALL) docs
	touch $@

clean:
	rm -rf .venv demo site .mypy_cache .ruff_cache .pytest_cache .hypothesis
