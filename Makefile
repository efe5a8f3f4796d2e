# Everything on a machine with Python >= 3.11 and make:
#   make demo          install, then show two agents on a throw-away bus
#   make test          ruff, mypy, pytest
#   make test-harness  the real command lines of the harnesses (needs node and npm)
#   make bench         short benchmarks
#   make clean         remove what the above made inside this folder
#
# PYTHON=...        the interpreter to use; otherwise the first suitable one on PATH
# AGENTBUS_VENV=... where the virtual environment goes; otherwise .venv in this folder

VENV := $(or $(AGENTBUS_VENV),.venv)
HARNESS := .harness
CLAUDE_CODE := @anthropic-ai/claude-code@2.1.332
CODEX := @openai/codex@0.171.0
OPENCODE := opencode-ai@1.18.33
GEMINI := @google/gemini-cli@0.61.0

PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3 python; do \
	if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo $$python; break; fi; done)

PIP = $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
METADATA = setup.cfg pyproject.toml agentbus/__init__.py

.PHONY: demo test lint test-harness bench clean

demo: $(VENV)/.installed-demo
	$(VENV)/bin/agentbus-admin demo

# Many tests wait for processes: one more at a time than there are cores, by files.
test: lint
	$(VENV)/bin/python -m pytest -n 3 --dist loadfile

lint: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

test-harness: $(VENV)/.installed-test $(HARNESS)/.installed
	$(VENV)/bin/python -m pytest -m harness -n 2 --dist loadfile

bench: $(VENV)/.installed-test
	$(VENV)/bin/python -m tests.benchmarks --quick

clean:
	rm -rf .venv $(HARNESS) build agentbus_broker.egg-info
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found on PATH: install one," \
		"or name it with make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "$(PYTHON) cannot make virtual environments:" \
		"install its venv package (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv "$(VENV)"

# The stamps: an install is repeated only when the metadata changed. Editable, so code needs none.
$(VENV)/.installed-demo: $(METADATA) | $(VENV)/bin/python
	$(PIP) install --editable '.[install,search]'
	@touch $@

$(VENV)/.installed-test: $(METADATA) | $(VENV)/bin/python
	$(PIP) install --editable '.[install,search,nats,s3,examples,test]'
	@touch $@

# No install scripts. Claude Code's program is then to be started where its platform package has it:
# node_modules/@anthropic-ai/claude-code-<platform>/claude
$(HARNESS)/.installed: Makefile
	@command -v npm >/dev/null || { echo "npm not found: install Node.js with npm" >&2; exit 1; }
	npm install --prefix $(HARNESS) --ignore-scripts --no-audit --no-fund --loglevel=error \
		$(CLAUDE_CODE) $(CODEX) $(OPENCODE) $(GEMINI)
	@touch $@
