# Everything Baton needs for development. `make help` lists the targets.
SHELL := /bin/bash
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
KERNELS := $(VENV)/.kernels
# Envoy, Helm, Kubernetes' schemas, Locust, NIXL: 1 GB that only tests and deployment need.
DEPLOY := $(VENV)/.deploy
LOADTEST := $(VENV)/.loadtest
CSRC := $(wildcard baton/model/cpu/csrc/*.cpp baton/model/cpu/csrc/*.h baton/handoff/csrc/*.cpp)
# The lowest transformers that pyproject.toml allows, and what it needs older than constraints.txt.
OLDEST_VENV := .venv-oldest
OLDEST := transformers==5.17.0 huggingface_hub==1.33.0
VLLM_VENV := .venv-vllm
BATON_PORT ?= 8080
ARGS ?=
export BATON_PORT

.DEFAULT_GOAL := help
.PHONY: help setup up down status test test-long fuzz test-oldest test-clients chaos test-cluster bench bench-router bench-gateway bench-peers test-engines loadtest images check fmt protos clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(KERNELS) $(if $(filter vllm,$(ENGINE)),$(VLLM_VENV)/.installed) ## make the virtual environment in .venv, and nothing else (ENGINE=vllm: also .venv-vllm)

$(VLLM_VENV)/.installed: tools/vllm.sh
	@PYTHON=$(CURDIR)/$(RUN) tools/vllm.sh $(VLLM_VENV)

$(INSTALLED): pyproject.toml constraints.txt tools/setup.sh
	@tools/setup.sh $(VENV)

$(KERNELS): $(INSTALLED) $(CSRC) baton/model/cpu/build_native.py tools/kernels.sh
	@tools/kernels.sh $(VENV)

$(DEPLOY): $(INSTALLED)
	@tools/setup.sh --deploy $(VENV)

$(LOADTEST): $(INSTALLED)
	@tools/setup.sh --loadtest $(VENV)

up: $(KERNELS) $(if $(findstring --edge,$(ARGS)),$(DEPLOY)) ## run the whole stack on this machine (ARGS="--decode 3", BATON_PORT=8080)
	@exec $(VENV)/bin/baton up --port $(BATON_PORT) $(ARGS)

down: $(INSTALLED) ## stop the stack of this folder
	@$(VENV)/bin/baton down

status: $(INSTALLED) ## the processes of the stack, and whether it is ready
	@$(VENV)/bin/baton status

test: $(KERNELS) $(DEPLOY) ## all tests, with a table of times
	@tools/test_programs.sh
	@$(RUN) tools/run_tests.py

test-engines: $(KERNELS) ## what every engine keeps to a worker: Baton's own, and vLLM's after make setup ENGINE=vllm
	@BATON_VLLM_PYTHON=$${BATON_VLLM_PYTHON:-$(wildcard $(CURDIR)/$(VLLM_VENV)/bin/python)} OMP_NUM_THREADS=1 \
		OMP_WAIT_POLICY=PASSIVE $(RUN) -m pytest tests/engines --timeout 900 --junitxml .baton/test-engines.xml $(ARGS)

test-long: $(KERNELS) $(DEPLOY) ## the same with the large counts
	@tools/test_programs.sh
	@BATON_TEST_LONG=1 $(RUN) tools/run_tests.py

# A part of it: ARGS="-k 'bodies and 7'" is part 7 of the bodies.
fuzz: $(INSTALLED) ## the part of test-long that sends hostile and described requests, with their counts
	@BATON_TEST_LONG=1 $(RUN) -m pytest tests/simulation/hostile -n auto --dist worksteal $(ARGS)

# Without the tokenizer's oracle: chat templates are rendered as the newest transformers does. One
# architecture of the old release is still TorchScript, which the newest torch says is deprecated.
test-oldest: $(OLDEST_VENV)/.installed ## the models' tests on the oldest supported transformers
	@OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(OLDEST_VENV)/bin/python -m pytest tests/model \
		--ignore=tests/model/tokenizer/test_tokenizer_oracle.py \
		-W 'ignore:`torch.jit.script` is deprecated:DeprecationWarning'

$(OLDEST_VENV)/.installed: pyproject.toml constraints.txt tools/setup.sh Makefile
	@tools/setup.sh $(OLDEST_VENV) $(OLDEST)

# With BASE_URL and API_KEY, against that server; NAMES="openai langchain" takes some of the clients.
test-clients: $(KERNELS) ## the API with other projects' clients, installed under .baton/clients
	@PYTHON=$(RUN) tools/clients.sh .baton/clients
	@$(RUN) tests/clients/run.py .baton/clients $(NAMES)

chaos: $(KERNELS) $(DEPLOY) ## every kind of fault ten times against the real stack, with a table (ENGINE=vllm)
	@BATON_CHAOS_EACH=10 BATON_CHAOS_ENGINE=$(or $(ENGINE),baton) OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=0 \
		$(RUN) -m pytest tests/chaos $(ARGS)

test-cluster: $(DEPLOY) ## the chart on the Kubernetes of KUBECONFIG (LOAD="kind load docker-image"; see docs/benchmarks/cluster.md)
	@BATON_TEST_CLUSTER=1 $(RUN) -m pytest tests/cluster $(ARGS)

bench: $(KERNELS) ## the engine beside its peers (ARGS="--quick"; see docs/benchmarks)
	@$(VENV)/bin/python -m bench engine $(ARGS)

bench-router: $(INSTALLED) ## recorded traffic through the router (ARGS="--quick --traces FOLDER")
	@$(RUN) -m bench router $(ARGS)

bench-gateway: $(INSTALLED) ## CPU of a token and of a request before simulated workers (ARGS="--quick")
	@$(RUN) -m bench gateway $(ARGS)

bench-peers: $(INSTALLED) ## install the peers that benchmarks compare with (WHAT=gateways: not the engines)
	@PYTHON=$(CURDIR)/$(RUN) tools/bench_peers.sh "" "$(WHAT)"

loadtest: $(LOADTEST) ## load on what `make up` runs, for two minutes (USERS=20 DURATION=60 ARGS="--scenario reference")
	@$(RUN) -m loadtest $(if $(USERS),--users $(USERS)) $(if $(DURATION),--duration $(DURATION)) $(ARGS)

images: ## build the container images (REGISTRY=... TAG=... PUSH=1 IMAGES="gateway edge"; see tools/images.sh)
	@tools/images.sh $(IMAGES)

check: $(INSTALLED) ## format, lint, types, import contracts, generated code: in seconds
	@tools/check.sh $(VENV)

fmt: $(INSTALLED) ## rewrite the code in its format
	@$(VENV)/bin/ruff check --fix -q . ; $(VENV)/bin/ruff format -q .

protos: $(INSTALLED) ## generate baton/wire/v1 from protos/
	@tools/protos.sh $(VENV) .

clean: ## remove caches and the virtual environment (keeps .baton)
	@rm -rf $(VENV) $(OLDEST_VENV) $(VLLM_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
