# make demo: set up, convert the bundled pair and run it.   make test: set up and pass every check.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= out

.PHONY: demo test lint format fuzz bench clean

$(BIN)/dflash-convert: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: $(BIN)/dflash-convert
	mkdir -p $(OUT)/demo
	$(BIN)/dflash-convert fixtures/tiny-js/drafter --target-model-dir fixtures/tiny-js/target --target-name tiny-js \
		-t q8_0 -t q4_0 -o $(OUT)/demo --force
	for type in Q8_0 Q4_0; do \
		$(BIN)/dflash-convert validate $(OUT)/demo/dflash-tiny-js-$$type.gguf fixtures/tiny-js/target-bf16.gguf \
			--prompts fixtures/tiny-js/prompts.jsonl --n-max 7 --html $(OUT)/demo/report-$$type.html || exit $$?; \
	done
	@echo "reports: $(abspath $(OUT))/demo/report-Q8_0.html $(abspath $(OUT))/demo/report-Q4_0.html"

test: lint
	$(BIN)/python -m pytest

lint: $(BIN)/dflash-convert
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(BIN)/dflash-convert
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(OUT) build dist *.egg-info
