# make demo   train, attack and compare on the data that ships with the package (TORCH=cuda or TORCH=cpu: which build of torch)
# make test   lint, types and tests
# make test-browser   the report in Chromium, which is installed if need be (Debian)
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
DEMO_STAMP := .venv/.installed-demo
INSTALL := PYTHON=$(PYTHON) TORCH=$(TORCH) bash tools/install.sh .venv

.PHONY: demo test test-browser setup clean FORCE
demo: $(DEMO_STAMP)
	$(BIN)/worstclass demo --out demo

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

test-browser: $(STAMP)
	bash tools/install_browser.sh
	BROWSER=required $(BIN)/pytest tests/browser

setup: $(STAMP)

# The package alone, and with the test tools; TORCH=... installs again.
$(DEMO_STAMP): pyproject.toml constraints.txt tools/install.sh $(if $(TORCH),FORCE)
	$(INSTALL)
	touch $@

$(STAMP): pyproject.toml constraints.txt tools/install.sh $(if $(TORCH),FORCE)
	$(INSTALL) test
	touch $@ $(DEMO_STAMP)

clean:
	rm -rf .venv demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
