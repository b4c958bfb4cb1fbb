# One command each: `make demo` scans a real release, `make test` passes the tests. Needs Python 3.11+, git, make.
VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet
JOBS ?= 2
ENGINE ?= vllm==0.33.0

.DEFAULT_GOAL := help
.PHONY: help demo test lint format lock check-readme readme releases bench bench-rules bench-ssh bench-patch bytecode test-rules schemas clean

help: ## Show this list.
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

demo: $(BIN)/.runtime ## Scan a real vLLM release from the package index (about 4 MB are read).
	$(BIN)/specaudit scan "$(ENGINE)"

test: $(BIN)/.dev ## Run every test.
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(TESTS)

lint: $(BIN)/.dev ## ruff and mypy.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(BIN)/.dev ## Let ruff write what lint would complain about.
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

check-readme: $(BIN)/.dev ## Compare the README's help texts and outputs with the program.
	$(BIN)/python .ci/readme.py

readme: $(BIN)/.dev ## Put what the program prints now into the README.
	$(BIN)/python .ci/readme.py --write

releases: $(BIN)/.runtime ## Scan all 40 vLLM releases from 0.9.2 to 0.33.0 and two of SGLang.
	$(BIN)/specaudit scan $(shell cat benchmarks/releases.txt) --no-rules --brief

bench: $(BIN)/.dev .bench/bin/semgrep bytecode ## Time the scan beside semgrep, ast-grep and grep; prints a Markdown table.
	$(BIN)/python benchmarks/scan.py

bench-ssh: $(BIN)/.dev bytecode ## Time scans of 1 and 20 machines through a line that delays each direction by 25 ms.
	$(BIN)/python benchmarks/ssh.py

bench-rules: $(BIN)/.dev .bench/bin/semgrep bytecode ## Time what the rules add, beside ast-grep with the same shapes.
	$(BIN)/python benchmarks/rules.py

bytecode: $(BIN)/.dev # as pip leaves an installed program; an editable one may be told to write none
	@$(BIN)/python -m compileall -q specaudit

test-rules: $(BIN)/.dev ## Compare the rules' statuses with the table, on every release that was read.
	SPECAUDIT_EVERY_RELEASE=1 $(BIN)/python -m pytest -q tests/ruling/test_rules.py -k statuses

.bench/bin/semgrep: benchmarks/tools.txt
	$(PYTHON) -m venv .bench
	.bench/bin/python -m pip --disable-pip-version-check --quiet install -r benchmarks/tools.txt
	@touch $@

bench-patch: $(BIN)/.dev bytecode ## Time specaudit patch on the newest release; prints a Markdown table.
	$(BIN)/python benchmarks/patch.py

crash: $(BIN)/.dev ## Kill the patch agent at 240 system calls, and at 120 over SSH (about 8 minutes; needs strace, sshd).
	SPECAUDIT_CRASH_POINTS=240 $(BIN)/python -m pytest -q -s tests/patching/test_crash.py

lock: $(BIN)/.dev ## Write constraints.txt: the versions that pip resolves today.
	$(BIN)/python .ci/lock.py > constraints.txt.new && mv constraints.txt.new constraints.txt

schemas: $(BIN)/.dev ## Write the JSON schemas that reports/ publishes.
	$(BIN)/python -c 'import pathlib; from specaudit import document as d; d.publish_schemas(pathlib.Path("reports"))'

clean: ## Remove what was built; the cache of releases is under ~/.cache/specaudit.
	rm -rf $(VENV) .bench build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found; pass PYTHON=/path/to/python3." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(BIN)/.runtime: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(BIN)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e '.[dev,ddtree]'
	@touch $@ $(BIN)/.runtime
