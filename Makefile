# make demo   train, attack and compare on the data that ships with the package
# make test   lint, types and tests
# make test-browser   the report in Chromium, which is installed if need be (Debian)
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-browser setup clean
demo: $(STAMP)
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

$(STAMP): pyproject.toml constraints.txt tools/install.sh
	PYTHON=$(PYTHON) bash tools/install.sh .venv
	touch $@

clean:
	rm -rf .venv demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
