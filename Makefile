# Everything the project needs is set up by the targets themselves, inside this folder: an installer in .tools, and
# virtual environments from locked packages in .venv and beside it. A second run finds them ready.

.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-print-directory

RUN := sh tools/run.sh
BIN := .venv/bin
ARGS ?=
# The generated documents have a maker once tools/docs is there.
DOCS := $(wildcard tools/docs.py tools/docs/__main__.py)

.PHONY: help
help: ## tell what each target does (this text)
	@echo "make TARGET [ARGS=\"...\"]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1@\2/p' $(MAKEFILE_LIST) $(if $(DOCS),,| grep -v '^  docs@') | awk -F@ '{ printf "%-14s %s\n", $$1, $$2 }'

.PHONY: demo
demo: env-runtime ## watch a training job lose a GPU and heal, on this machine (ARGS go to the command)
	@$(BIN)/gpu-recovery demo --console 8080 $(ARGS)

.PHONY: demo-aws
demo-aws: env ## the same on AWS, simulated: deploy the stack with CDK, break a GPU, watch the functions heal it
	@$(BIN)/python -m tools.demo_aws $(ARGS)

.PHONY: test
test: check ## check, then the tests that are not slow, on Python 3.13 and 3.11 (ARGS go to pytest, WORKERS=n)
	@$(RUN) tools.suite $(ARGS)

.PHONY: slow
slow: env ## the tests that take long: a hundred kills, deep searches, every variant (ARGS go to pytest)
	@$(RUN) tools.suite --slow $(ARGS)

.PHONY: test-all
test-all: test slow ## both

.PHONY: model
model: env ## search every interleaving of small jobs, deeper than the tests do (ARGS="--help" tells how deep)
	@$(BIN)/python -m tools.model_check $(ARGS)

.PHONY: proof
proof: env ## simulate ten thousand bad nights and write build/proof.json (ARGS go to the tool)
	@$(BIN)/python -m tools.proof $(ARGS)

.PHONY: bench
bench: env ## measure, and write build/bench.json (ARGS name topics)
	@$(BIN)/python -m tools.bench $(ARGS)

.PHONY: check
check: env ## style, types, layers, locks and generated documents; no test
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo "Some files are not formatted. Run: make fmt" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo > .tools/imports.txt 2>&1 || { cat .tools/imports.txt; exit 1; }
	@$(RUN) tools.lock --check
ifneq ($(DOCS),)
	@$(BIN)/python -m tools.docs --check
endif
	@echo "All checks passed"

.PHONY: lint
lint: env ## style only, with what can be done about it
	@$(BIN)/ruff check
	@$(BIN)/ruff format --diff

.PHONY: fmt
fmt: env ## put the code into the house format, and mend what can be mended
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format
	@$(BIN)/ruff check

ifneq ($(DOCS),)
.PHONY: docs
docs: env ## make the generated documents again
	@$(BIN)/python -m tools.docs
endif

.PHONY: synth
synth: env node ## make the CloudFormation templates in cdk.out and check them (ARGS go to cdk synth)
	@PATH="$(CURDIR)/node_modules/.bin:$(CURDIR)/$(BIN):$$PATH" cdk synth --quiet --no-notices -c nag=true $(ARGS)
	@$(BIN)/cfn-lint --ignore-checks W3005 -- cdk.out/*.template.json
	@$(BIN)/python -m tools.permissions --check
	@echo "cdk.out holds the templates; no rule was broken"

.PHONY: node
node: ## set up node_modules: the CDK command and the Node.js that runs it, as locked
	@$(RUN) tools.node

.PHONY: build-lambda
build-lambda: env ## build what the functions run, in build/lambda (ARGS="--arch x86_64" for another architecture)
	@$(BIN)/python -m tools.build_lambda $(ARGS)

.PHONY: lock
lock: ## resolve the dependencies again (ARGS=--upgrade takes newer versions)
	@$(RUN) tools.lock $(ARGS)

.PHONY: env
env: ## set up .venv for development
	@$(RUN) tools.environment dev

.PHONY: env-runtime
env-runtime: # set up .venv with what the command needs; a development environment will do
	@$(RUN) tools.environment runtime

.PHONY: ministack
ministack: ## set up .venv-ministack, the local AWS that some tests start
	@$(RUN) tools.environment ministack

.PHONY: clean
clean: ## remove what was built and cached, but keep the environments
	@rm -rf build cdk.out .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .tools/cache
	@find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## remove the environments too: back to a fresh clone
	@rm -rf .venv .venv-* .tools node_modules

.PHONY: pictures
pictures: env ## take the pictures of the documentation again: the demo, and the console in a real browser
	@$(BIN)/python -m tools.pictures $(ARGS)
