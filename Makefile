# Everything Baton needs for development. `make help` lists the targets.
SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
BATON_PORT ?= 8080
ARGS ?=
export BATON_PORT

.DEFAULT_GOAL := help
.PHONY: help setup up down status test test-long check fmt protos clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(INSTALLED) ## make the virtual environment in .venv, and nothing else

$(INSTALLED): pyproject.toml constraints.txt tools/setup.sh
	@tools/setup.sh $(VENV)

up: $(INSTALLED) ## run the whole stack on this machine (ARGS="--decode 3", BATON_PORT=8080)
	@exec $(VENV)/bin/baton up --port $(BATON_PORT) $(ARGS)

down: $(INSTALLED) ## stop the stack of this folder
	@$(VENV)/bin/baton down

status: $(INSTALLED) ## what runs where
	@$(VENV)/bin/baton status

test: $(INSTALLED) ## all tests, with a table of times
	@$(PYTHON) tools/run_tests.py

test-long: $(INSTALLED) ## the same with the large counts
	@BATON_TEST_LONG=1 $(PYTHON) tools/run_tests.py

check: $(INSTALLED) ## format, lint, types, import contracts, generated code: in seconds
	@tools/check.sh $(VENV)

fmt: $(INSTALLED) ## rewrite the code in its format
	@$(VENV)/bin/ruff check --fix -q . ; $(VENV)/bin/ruff format -q .

protos: $(INSTALLED) ## generate baton/wire/v1 from protos/
	@tools/protos.sh $(VENV) .

clean: ## remove caches and the virtual environment (keeps .baton)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
