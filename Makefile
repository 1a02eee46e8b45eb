define HELP
make demo       set up, convert the bundled pair and run it
make release    a checked package of any pair; its variables are described in this file
make test       set up and pass every check, as CI does
make test-fast  the quick tests alone, on every core
make lint       ruff and mypy              make format  mend what ruff can
make faults     every file-system call failed in turn, 200 kills
make portable   convert, quantize, check, verify and package as on Windows, Linux's calls taken away
make limits     memory of every type       make fuzz    fuzzing
make image      a container image (make image-cuda LLAMA_IMAGE=…), Dockerfile says more
make man        the manual page in $(OUT)/man
make docs       the pages of docs/ as a site in $(OUT)/site, strictly checked
make differential LLAMA_CPP=TREE PYTHON=PATH   every byte against llama.cpp's converter, seeded
make audit      known vulnerabilities      make clean   remove what was made
make hardware LLAMA_SERVER=PATH            the pairs in a llama-server of yours
endef
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= out

DFLASH ?= $(BIN)/dflash-convert
TOOL := $(if $(filter $(BIN)/dflash-convert,$(DFLASH)),$(DFLASH))

export HELP

help:
	@echo "$$HELP"

.PHONY: help demo test test-fast lint format faults portable limits fuzz audit hardware release clean docs man image image-cuda differential

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(CI),-c constraints.txt)

# what runs
$(BIN)/dflash-convert: pyproject.toml
	@echo "setting up $(VENV): a minute or two the first time"
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[engine]'
	touch $@

# what development needs besides
DEV := $(BIN)/ruff

$(DEV): $(BIN)/dflash-convert
	$(PIP) -e '.[dev]'
	# without its own bounds: it wants an older numpy than it needs for the tokenizers
	$(PIP) --no-deps mistral-common
	touch $@

# in a pipe lines have no width of their own
demo: export COLUMNS ?= 80
demo: $(TOOL)
	@mkdir -p "$(OUT)/demo"
	$(DFLASH) fixtures/tiny-js/drafter \
		--target-model-dir fixtures/tiny-js/target --target-name tiny-js \
		-t q8_0 -t q4_0 -o "$(OUT)/demo" --force
	for type in Q8_0 Q4_0; do \
		$(DFLASH) validate \
			"$(OUT)/demo/dflash-tiny-js-$$type.gguf" \
			fixtures/tiny-js/target-bf16.gguf \
			--prompts fixtures/tiny-js/prompts.jsonl --n-max 7 --quick \
			--html "$(OUT)/demo/report-$$type.html" --force || exit $$?; \
	done
	@echo "Both models of this pair are tiny:"
	@echo "drafting shows its acceptance here, it does not pay on a CPU."
	@cd "$(OUT)/demo" && echo "reports: $$(pwd)/report-Q8_0.html $$(pwd)/report-Q4_0.html"

# a share of the tests for each core
PYTEST = $(BIN)/python -m pytest -n $(or $(TEST_JOBS),$(shell nproc 2>/dev/null || echo 2)) --dist worksteal

test: lint
	$(PYTEST)

# unit and small integration tests
test-fast: $(DEV)
	$(PYTEST) -m "not slow"

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the index is a page too; --strict makes an error of a link that leads nowhere
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --site-dir "$$(mkdir -p "$(OUT)" && cd "$(OUT)" && pwd)/site"
	@echo "$$(cd "$(OUT)" && pwd)/site/index.html"

man: $(BIN)/dflash-convert
	mkdir -p "$(OUT)/man"
	$(BIN)/python docs/make_man.py > "$(OUT)/man/dflash-convert.1"

CONTAINER ?= docker
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

image:
	$(CONTAINER) build --target cpu --tag dflash-convert:$(VERSION) .

image-cuda:
	@test -n "$(LLAMA_IMAGE)" || { echo "make image-cuda LLAMA_IMAGE=IMAGE: one that brings llama-server for CUDA" >&2; exit 2; }
	$(CONTAINER) build --target cuda --build-arg LLAMA_IMAGE=$(LLAMA_IMAGE) --tag dflash-convert:$(VERSION)-cuda .

# Slow proofs (figures in SECURITY.md): every fault and 200 kills, memory of every type, fuzzing, known vulnerabilities.
FUZZ_RUNS ?= 100000

faults: $(DEV)
	DFLASH_FAULTS=all DFLASH_KILLS=200 $(BIN)/python -m pytest tests/faults

# convert, quantize, check, verify and package with the calls taken away that only Linux or only POSIX systems have
portable: $(DEV)
	$(BIN)/python tests/portable_system.py tests/convert tests/quantize tests/pairing tests/verify tests/container \
		tests/release/test_release_package.py tests/parity $(PORTABLE)
	$(BIN)/python -m pytest tests/output tests/test_portable.py tests/faults/test_faults_processes.py

limits: $(DEV)
	DFLASH_LIMITS=all $(BIN)/python -m pytest tests/test_limits.py

fuzz: $(DEV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris
	PYTHONPATH=fixtures $(BIN)/python fuzz/seeds.py "$(OUT)/fuzz/seeds"
	for name in gguf safetensors config tokenizer torchfile; do \
		mkdir -p "$(OUT)/fuzz/$$name"; \
		PYTHONPATH=fixtures $(BIN)/python fuzz/harness.py fuzz_$$name -runs=$(FUZZ_RUNS) -timeout=10 -rss_limit_mb=1000 -max_len=4096 \
			-len_control=0 -dict=fuzz/json.dict -print_final_stats=1 -artifact_prefix="$(OUT)/fuzz/find-$$name-" \
			"$(OUT)/fuzz/$$name" fuzz/corpus/$$name "$(OUT)/fuzz/seeds/$$name" || exit $$?; \
	done

# PYTHON has torch, transformers and sentencepiece; docs/differences.md lists what differs on purpose
SEED ?= 1
CASES ?= 200
FIRST ?= 0

differential: $(DEV)
	$(BIN)/python -m differential --llama-cpp $(LLAMA_CPP) --python $(PYTHON) --seed $(SEED) --cases $(CASES) --first $(FIRST)

audit: $(BIN)/dflash-convert
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python -m pip_audit --strict --progress-spinner off --no-deps --disable-pip -r constraints.txt

# The trained pair and every family in a llama-server of yours, on its GPU if it has one.
hardware: $(DEV)
	DFLASH_LLAMA_SERVER="$(LLAMA_SERVER)" $(BIN)/python -m pytest \
		tests/validate/test_validate_hardware.py tests/families/test_families_run.py

# A checked package of one pair: converted, checked, verified, validated and packaged by `batch`, which does nothing
# again that is up to date. Paths are relative to this directory.
#   DRAFTER, TARGET   directories or Hub ids; the target may be a GGUF     TARGET_NAME  its name in file names
#   TYPES             encodings to release       TARGET_GGUF  the target to validate with; empty: do not validate
#   N_MAX             draft length               MIN_ACCEPTANCE  required share of accepted drafts, 0 to 1
#   SETTINGS          more lines of release.toml, for example SETTINGS='license = "mit"'     JOBS  types at a time
DRAFTER ?= fixtures/tiny-js/drafter
TARGET ?= fixtures/tiny-js/target
BUNDLED := $(filter fixtures/tiny-js/target,$(TARGET))
TARGET_GGUF ?= $(if $(BUNDLED),fixtures/tiny-js/target-bf16.gguf)
TARGET_NAME ?= $(if $(BUNDLED),tiny-js,$(shell t='$(TARGET)'; t="$${t%@*}"; t="$${t%/}"; basename "$$t" | sed 's/\.gguf$$//; s/-GGUF$$//; s/ /-/g'))
TYPES ?= Q8_0 Q4_0
N_MAX ?=
MIN_ACCEPTANCE ?=
SETTINGS ?=
JOBS ?= 1

WORK := $(OUT)/release
PLAN := $(WORK)/$(TARGET_NAME).toml
# an existing place as an absolute path, with spaces and all; make's own functions would split it
place = $(shell p='$(1)'; if test -e "$$p"; then case "$$p" in (/*) printf %s "$$p";; (*) printf %s "$(CURDIR)/$$p";; esac; else printf %s "$$p"; fi)
define RELEASE
out = "."
types = [$(foreach type,$(TYPES),"$(type)",)]
$(if $(N_MAX),n_max = $(N_MAX))
$(if $(MIN_ACCEPTANCE),min_acceptance = $(MIN_ACCEPTANCE))
$(SETTINGS)
[[pair]]
name = "$(TARGET_NAME)"
target_name = "$(TARGET_NAME)"
drafter = "$(call place,$(DRAFTER))"
target = "$(call place,$(TARGET))"
$(if $(TARGET_GGUF),target_gguf = "$(call place,$(TARGET_GGUF))")
$(if $(BUNDLED),fidelity = true)
$(if $(and $(BUNDLED),$(TARGET_GGUF)),prompts = "$(CURDIR)/fixtures/tiny-js/prompts.jsonl"
validate = ["--quick"])
endef
export RELEASE

release: | $(TOOL)
	@mkdir -p "$(WORK)"
	@printf '%s\n' "$$RELEASE" > "$(PLAN)"
	$(DFLASH) batch "$(PLAN)" --jobs $(JOBS)
	$(DFLASH) package --check "$(WORK)/packages/$(TARGET_NAME)"

clean:
	rm -rf $(VENV) "$(OUT)" build dist *.egg-info
