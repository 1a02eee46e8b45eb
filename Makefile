# make demo: set up, convert the bundled pair and run it.   make test: set up and pass every check.
# make release: a checked package of any pair; the variables are described at "Pipeline" below.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= out

.PHONY: demo test lint format faults limits fuzz audit hardware clean
.PHONY: convert quantize check verify validate package release FORCE

$(BIN)/dflash-convert: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(CI),-c constraints.txt) -e '.[dev]'
	touch $@

demo: $(BIN)/dflash-convert
	mkdir -p $(OUT)/demo
	$(BIN)/dflash-convert fixtures/tiny-js/drafter --target-model-dir fixtures/tiny-js/target --target-name tiny-js \
		-t q8_0 -t q4_0 -o $(OUT)/demo --force
	for type in Q8_0 Q4_0; do \
		$(BIN)/dflash-convert validate $(OUT)/demo/dflash-tiny-js-$$type.gguf fixtures/tiny-js/target-bf16.gguf \
			--prompts fixtures/tiny-js/prompts.jsonl --n-max 7 --quick --html $(OUT)/demo/report-$$type.html || exit $$?; \
	done
	@echo "Both models of this pair are tiny: drafting shows its acceptance here, it does not pay on a CPU."
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

# Slow proofs (figures in SECURITY.md): every fault and 200 kills, memory of every type, fuzzing, known vulnerabilities.
FUZZ_RUNS ?= 100000

faults: $(BIN)/dflash-convert
	DFLASH_FAULTS=all DFLASH_KILLS=200 $(BIN)/python -m pytest tests/faults

limits: $(BIN)/dflash-convert
	DFLASH_LIMITS=all $(BIN)/python -m pytest tests/test_limits.py

fuzz: $(BIN)/dflash-convert
	$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris
	$(BIN)/python fuzz/seeds.py $(OUT)/fuzz/seeds
	for name in gguf safetensors config tokenizer torchfile; do \
		mkdir -p $(OUT)/fuzz/$$name; \
		$(BIN)/python fuzz/harness.py fuzz_$$name -runs=$(FUZZ_RUNS) -timeout=10 -rss_limit_mb=1000 -max_len=4096 \
			-len_control=0 -dict=fuzz/json.dict -print_final_stats=1 -artifact_prefix=$(OUT)/fuzz/find-$$name- \
			$(OUT)/fuzz/$$name fuzz/corpus/$$name $(OUT)/fuzz/seeds/$$name || exit $$?; \
	done

audit: $(BIN)/dflash-convert
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python -m pip_audit --strict --progress-spinner off --no-deps --disable-pip -r constraints.txt

# The trained pair and every family in a llama-server of yours, on its GPU if it has one.
hardware: $(BIN)/dflash-convert
	DFLASH_LLAMA_SERVER=$(LLAMA_SERVER) $(BIN)/python -m pytest \
		tests/validate/test_validate_hardware.py tests/families/test_families_run.py

# Pipeline: convert -> quantize -> check, verify, validate -> package -> release, each target with all before it.
#   DRAFTER, TARGET   directories or Hub ids     TARGET_NAME  the target's name in file names
#   TYPES             encodings to release       TARGET_GGUF  the target to validate with; empty: do not validate
#   N_MAX             draft length               MIN_ACCEPTANCE  required share of accepted drafts, 0 to 1
#   PACKAGE_OPTIONS, VALIDATE_OPTIONS, VERIFY_OPTIONS   more arguments of these commands     OUT  where everything goes
# A step runs again when its inputs or its own variables changed. Safe under -j; validations run one at a time,
# so that they do not slow each other down.
DRAFTER ?= fixtures/tiny-js/drafter
TARGET ?= fixtures/tiny-js/target
TARGET_GGUF ?= $(if $(filter fixtures/tiny-js/target,$(TARGET)),fixtures/tiny-js/target-bf16.gguf)
TARGET_NAME ?= $(if $(filter fixtures/tiny-js/target,$(TARGET)),tiny-js,$(notdir $(firstword $(subst @, ,$(TARGET)))))
TYPES ?= Q8_0 Q4_0
N_MAX ?=
MIN_ACCEPTANCE ?=
PACKAGE_OPTIONS ?=
VERIFY_OPTIONS ?= $(if $(filter fixtures/tiny-js/target,$(TARGET)),--fidelity)
VALIDATE_OPTIONS ?= --quick $(if $(filter fixtures/tiny-js/target,$(TARGET)),--prompts fixtures/tiny-js/prompts.jsonl)

DFLASH ?= $(BIN)/dflash-convert
TOOL := $(if $(filter $(BIN)/dflash-convert,$(DFLASH)),$(DFLASH))
WORK := $(OUT)/work/$(TARGET_NAME)
PACKAGE := $(OUT)/release/$(TARGET_NAME)
BASE := $(WORK)/base.gguf
DRAFTER_FILES := $(wildcard $(DRAFTER)/*.json $(DRAFTER)/*.safetensors $(DRAFTER)/README.md)
TARGET_FILES := $(wildcard $(TARGET)/*.json $(TARGET)/*.model $(TARGET)/*.jinja $(TARGET)/*.txt)
gguf = $(WORK)/dflash-$(TARGET_NAME)-$(1).gguf
GGUFS := $(foreach type,$(TYPES),$(call gguf,$(type)))
CHECKED := $(WORK)/check.json
VERIFIED := $(TYPES:%=$(WORK)/verify-%.json)
VALIDATED := $(if $(TARGET_GGUF),$(TYPES:%=$(WORK)/validate-%.json))

convert: $(BASE)
quantize: $(GGUFS)
check: $(CHECKED)
verify: $(VERIFIED)
validate: $(VALIDATED)
package: $(PACKAGE)/SHA256SUMS
release: package
	$(DFLASH) package --check $(PACKAGE)

# what a step was last run with: rewritten, and so newer, only when that changed
define settings
$(WORK)/.$(1): FORCE
	@mkdir -p $$(@D)
	@echo '$(2)' | cmp -s - $$@ || echo '$(2)' > $$@
endef
$(eval $(call settings,convert,$(DRAFTER) $(TARGET) $(TARGET_NAME)))
$(eval $(call settings,check,$(TARGET_GGUF) $(N_MAX)))
$(eval $(call settings,verify,$(VERIFY_OPTIONS)))
$(eval $(call settings,validate,$(TARGET_GGUF) $(N_MAX) $(MIN_ACCEPTANCE) $(VALIDATE_OPTIONS)))
$(eval $(call settings,package,$(TYPES) $(TARGET_GGUF) $(N_MAX) $(PACKAGE_OPTIONS)))

# the drafter in its own precision; reports appear whole, by a rename
$(BASE): $(DRAFTER_FILES) $(TARGET_FILES) $(WORK)/.convert | $(TOOL)
	$(DFLASH) convert $(DRAFTER) --target-model-dir $(TARGET) --target-name $(TARGET_NAME) -o $@ --force

$(GGUFS): $(call gguf,%): $(BASE)
	$(DFLASH) quantize $< $@ $* --force

$(CHECKED): $(BASE) $(TARGET_GGUF) $(WORK)/.check
	$(DFLASH) check $< $(or $(TARGET_GGUF),$(TARGET)) $(if $(N_MAX),--n-max $(N_MAX)) --json > $@.new
	mv $@.new $@

$(VERIFIED): $(WORK)/verify-%.json: $(call gguf,%) $(WORK)/.verify
	$(DFLASH) verify $< $(DRAFTER) --target-model-dir $(TARGET) $(VERIFY_OPTIONS) --json > $@.new
	mv $@.new $@

$(VALIDATED): $(WORK)/validate-%.json: $(call gguf,%) $(TARGET_GGUF) $(WORK)/.validate | $(CHECKED)
	$(DFLASH) validate $< $(TARGET_GGUF) $(if $(N_MAX),--n-max $(N_MAX)) \
		$(if $(MIN_ACCEPTANCE),--min-acceptance $(MIN_ACCEPTANCE)) $(VALIDATE_OPTIONS) --json > $@.new
	mv $@.new $@

# one validation after the other
before = $(if $(filter-out $(1),$(firstword $(2))),$(firstword $(2)) $(call before,$(1),$(wordlist 2,$(words $(2)),$(2))))
$(foreach type,$(if $(TARGET_GGUF),$(TYPES)),$(eval \
	$(WORK)/validate-$(type).json: | $(patsubst %,$(WORK)/validate-%.json,$(lastword $(call before,$(type),$(TYPES))))))

$(PACKAGE)/SHA256SUMS: $(GGUFS) $(CHECKED) $(VERIFIED) $(VALIDATED) $(WORK)/.package
	@mkdir -p $(dir $(PACKAGE))
	$(DFLASH) package $(GGUFS) --out $(PACKAGE) $(VALIDATED:%=--validation %) $(VERIFIED:%=--verification %) \
		$(if $(TARGET_GGUF),--target-gguf $(TARGET_GGUF)) $(if $(N_MAX),--n-max $(N_MAX)) $(PACKAGE_OPTIONS) --force

clean:
	rm -rf $(VENV) $(OUT) build dist *.egg-info
