# Everything runs from .venv, which each target sets up when it has to. `make help` lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= 2
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test docs screenshots soak chaos fuzz check format e2e e2e-soak cluster-up cluster-down deploy image bench bench-check lock proto clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): requirements/dev.txt pyproject.toml
	@echo "Setting up $(VENV) (once) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## See what Tessera does
	@$(BIN)/tessera demo

# Byte code is kept, also where a shell says otherwise: compiling it again is a tenth of the time.
test: $(READY) ## Run the tests (JOBS=2: in so many processes)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

$(VENV)/.browser: requirements/browser.txt $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

screenshots: $(VENV)/.browser ## Make the documentation's pictures of the dashboard again (docs/images)
	@TESSERA_SCREENSHOTS=docs/images $(BIN)/python -m pytest e2e/test_dashboard.py e2e/test_dashboard_layouts.py -k "screenshots or thousands or wait_then_run"

$(VENV)/.docs: requirements/docs.txt $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

docs: $(VENV)/.docs ## Make the documentation's site (out/site/index.html); a broken link is an error
	@$(BIN)/python -m mkdocs build --clean

# A KUBECONFIG of the shell is left alone: only one given to make itself (`make e2e KUBECONFIG=…`) is tested on.
e2e: $(READY) $(VENV)/.browser ## Prove the promises on a real Kubernetes (KUBECONFIG=… for an existing one)
	@TESSERA_E2E_KUBECONFIG=$(if $(filter command line,$(origin KUBECONFIG)),$(abspath $(KUBECONFIG))) \
		$(BIN)/python -m pytest e2e --numprocesses=3 --max-worker-restart=0

e2e-soak: $(READY) ## On a real Kubernetes, kill the DRA driver 200 times, cut cards 20 times while pods come and go, kill 20 leaders of a rollout and 20 of the autopilot (20 minutes)
	@TESSERA_E2E_KILLS=200 TESSERA_E2E_ROUNDS=20 $(BIN)/python -m pytest e2e/test_dra.py e2e/test_real_cards.py -k "killed_at_random or random_layouts"
	@TESSERA_E2E_NODES=20 TESSERA_E2E_LEADERS=20 $(BIN)/python -m pytest e2e/test_layouts.py e2e/test_autopilot.py -k leaders_are_killed

cluster-up: $(READY) ## Start a real Kubernetes with one node, and leave it running
	@$(BIN)/python -m e2e.cluster up

cluster-down: $(READY) ## Stop it, and remove whatever a crash left behind
	@$(BIN)/python -m e2e.cluster down

deploy: $(READY) ## Render the chart again (deploy/tessera.yaml)
	@$(BIN)/python -m tools.chart

image: $(READY) ## Make the container image as an archive (out/tessera-image.tar), without Docker
	@$(BIN)/python -m tools.image

check: $(READY) ## Format, lint, types and import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY) ## Format the code and fix what the linter can fix
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

soak: $(READY) ## 200,000 reviews over TLS while nodes change, every answer checked; then every kind of attack, also with 256 MiB (10 minutes)
	@$(BIN)/python -m stress.soak
	@$(BIN)/python -m stress.hostile
	@$(BIN)/python -m stress.attack
	@$(BIN)/python -m stress.attack --memory 256
	@$(BIN)/python -m stress.tenants

chaos: $(READY) ## Twenty minutes of random faults while pods and layouts come and go: device plugin, DRA, cut cards, MigLayouts on several nodes
	@$(BIN)/python -m stress.chaos

fuzz: $(READY) ## A minute of coverage-guided fuzzing of the review path
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris==3.0.0
	@$(BIN)/python -m stress.fuzz_review -max_total_time=60 -max_len=4096

$(VENV)/.plots: requirements/plots.txt $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

$(VENV)/.peers: requirements/peers.txt $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

bench: $(VENV)/.plots $(VENV)/.peers ## Measure, beside peers in the same run, and write benchmarks/RESULTS.md
	@$(BIN)/python -m benchmarks

bench-check: $(READY) ## Compare a quick measurement with the one on record; every tool must grow as the cluster does
	@$(BIN)/python -m benchmarks --quick --check

lock: $(READY) ## Pin the versions that development and the image use (requirements)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 --upgrade pyproject.toml requirements/dev.in -o requirements/dev.txt
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 --no-emit-package numpy \
		--constraint requirements/dev.txt pyproject.toml -o requirements/runtime.txt
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 --constraint requirements/dev.txt requirements/build.in -o requirements/build.txt
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 --upgrade --constraint requirements/dev.txt requirements/browser.in -o requirements/browser.txt
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 --upgrade --constraint requirements/dev.txt requirements/plots.in -o requirements/plots.txt
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 --upgrade --constraint requirements/dev.txt requirements/peers.in -o requirements/peers.txt
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 --upgrade --constraint requirements/dev.txt requirements/docs.in -o requirements/docs.txt

proto: $(READY) ## Generate the messages again (src/tessera/protocol)
	@cd src && ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. tessera/protocol/*/*.proto

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
