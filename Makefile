# Every target sets up what it needs. `make help` explains them.

.DEFAULT_GOAL := help
STAMP := .venv/.shoal-setup
BIN := .venv/bin
# Byte code is kept, even if the environment forbids it: most tests start processes.
export PYTHONDONTWRITEBYTECODE :=
# Half of the time of a test is waiting, for processes and time-outs: two of them for each core.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS := $(shell echo $$(( $(CORES) > 3 ? 8 : 2 * $(CORES) )))
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n $(WORKERS) --dist loadgroup
# The pure cores and the formats: what needs neither a cluster nor a JVM.
FAST_FOLDERS := $(addprefix tests/, audit client formats net runtime wire workload \
	lite/controller lite/coordinator lite/groups lite/raft lite/replication)

# The first Python that runs is enough to start scripts/setup.py, which then looks for a
# supported one and explains what is missing.
$(STAMP): requirements/all.txt requirements/build.txt pyproject.toml scripts/setup.py
	@python3 scripts/setup.py

.PHONY: help
help: ## explain every target
	@awk -F ':.*## ' '/^[a-zA-Z%-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

.PHONY: setup
setup: $(STAMP) ## make .venv with everything locked in requirements/ (every other target does it)

.PHONY: demo
demo: setup ## send messages through source, mirror and target and judge them; then plant one loss
	@$(BIN)/shoal demo

.PHONY: test
test: setup system-packages ## all checks and tests (APT=yes installs a browser, kcat and shellcheck first)
	@$(MAKE) --no-print-directory --jobs 2 check byte-code
	SHOAL_APT=$(APT) $(PYTEST) $(PARALLEL) -m "not long"

.PHONY: test-long
test-long: setup system-packages ## the same tests at larger sizes: more seeds, histories, presets, storms
	SHOAL_APT=$(APT) $(PYTEST) $(PARALLEL) -m long

.PHONY: test-fast
test-fast: setup check ## checks, and the tests that need neither a cluster nor a JVM (under a minute)
	$(PYTEST) -n $(CORES) --dist loadgroup $(FAST_FOLDERS) \
		-m "not slow and not long and not apache and not spark and not system"

.PHONY: test-apache
test-apache: setup ## the interop tests against Apache Kafka: a test that it fails is a wrong test
	$(PYTEST) tests/interop --engine apache $(PARALLEL)

.PHONY: check
check: setup ## linter, formatter, types and import contracts
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Each process of a parallel run would compile all tests for itself. What does not compile is
# reported by the tests.
.PHONY: byte-code
byte-code: setup ## compile the tests once, beside the checks
	-@$(PYTEST) --collect-only --quiet --quiet > /dev/null 2>&1

.PHONY: format
format: setup ## format the code and mend what the linter can mend
	$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

.PHONY: fuzz
fuzz: setup ## throw COUNT bad inputs at the decoders (default 1 million), from SEED
	$(BIN)/python scripts/fuzz.py --count $(or $(COUNT),1000000) --seed $(or $(SEED),0)

.PHONY: prove-fuzz
prove-fuzz: setup ## 10 million bad inputs; writes docs/proofs/fuzz.md
	$(BIN)/python scripts/fuzz.py --count 10000000 --report docs/proofs/fuzz.md

.PHONY: prove-simulation
prove-simulation: setup ## 100,000 histories of the replicated log, and all planted bugs; writes docs/proofs/simulation.md
	$(BIN)/python -m shoal.lite.simulation --seeds 0:100000 --plant-all --report docs/proofs/simulation.md

.PHONY: prove-chaos
prove-chaos: setup ## kills, pauses, cuts and lost disks under load, 5 minutes a profile; writes docs/proofs/chaos.md
	$(BIN)/python scripts/chaos.py --seconds $(or $(SECONDS),300) --seed $(or $(SEED),1) --report docs/proofs/chaos.md

.PHONY: prove-mirror
prove-mirror: setup ## kills of the mirror, its source and its target during copies; writes docs/proofs/mirror.md
	$(BIN)/python scripts/prove_mirror.py --engine lite --kills $(or $(KILLS),200) --seed $(or $(SEED),1) --report docs/proofs/mirror.md
	$(BIN)/python scripts/prove_mirror.py --engine apache --kills $(or $(APACHE_KILLS),20) --seed $(or $(SEED),1) --report docs/proofs/mirror.md
	$(BIN)/python scripts/prove_mirror.py --engine apache-lite --kills $(or $(APACHE_KILLS),20) --seed $(or $(SEED),1) --report docs/proofs/mirror.md

.PHONY: prove-endurance
prove-endurance: setup ## a mirror beside a steady load and kills for HOURS (2); writes docs/proofs/endurance.md
	$(BIN)/python scripts/endure_mirror.py --hours $(or $(HOURS),2) --report docs/proofs/endurance.md

.PHONY: prove-lifecycle
prove-lifecycle: setup ## topics and clusters change under a mirror, in every way; writes docs/proofs/lifecycle.md
	$(BIN)/python scripts/prove_lifecycle.py --engine lite --seed $(or $(SEED),1) --report docs/proofs/lifecycle.md
	$(BIN)/python scripts/prove_lifecycle.py --engine apache --seed $(or $(SEED),1) --report docs/proofs/lifecycle.md

.PHONY: prove-presets
prove-presets: setup ## every preset on Kafka Lite and on Apache Kafka; writes docs/proofs/presets.md
	$(BIN)/python scripts/prove_presets.py --report docs/proofs/presets.md

.PHONY: prove-spark
prove-spark: setup ## a run on Spark clusters that lose executors, judged everywhere; writes docs/proofs/spark.md
	$(BIN)/python scripts/prove_spark.py --report docs/proofs/spark.md

.PHONY: prove-coordinators
prove-coordinators: setup ## 50 kills each of group and transaction coordinators; writes docs/proofs/coordinators.md and transactions.md
	$(BIN)/python scripts/coordinators.py --kills $(or $(KILLS),50) --report docs/proofs/coordinators.md
	$(BIN)/python scripts/transaction_storm.py --kills $(or $(KILLS),50) --report docs/proofs/transactions.md

.PHONY: prove-audit
prove-audit: setup ## 100,000 planted anomalies and a second judge; writes docs/proofs/audit.md
	$(BIN)/shoal audit --self-test --plantings 100000 --report docs/proofs/audit.md

.PHONY: prove-follow
prove-follow: setup ## a run of 10 minutes with 20 planted findings, judged while it runs; writes docs/proofs/follow.md
	$(BIN)/python scripts/prove_follow.py --seconds $(or $(FOLLOW_SECONDS),600) --report docs/proofs/follow.md

.PHONY: site
site: setup ## all documents as HTML pages with a menu, and a page of results, in site/
	$(BIN)/python scripts/build_site.py --out site

.PHONY: prove-dashboards
prove-dashboards: setup ## a real Prometheus evaluates the Grafana dashboards in DASHBOARDS; writes docs/proofs/dashboards.md
	$(BIN)/python scripts/prove_dashboards.py $(or $(DASHBOARDS),$(error give DASHBOARDS=FOLDER)) --report docs/proofs/dashboards.md

.PHONY: prove-page
prove-page: setup ## first paint, charts and memory of shoal serve in a real browser; writes docs/proofs/page.md
	$(BIN)/python scripts/prove_page.py

.PHONY: bench-mirror
bench-mirror: setup ## the mirror beside MirrorMaker: full batches, and the bad shapes
	$(BIN)/python -m benchmarks.mirror
	$(BIN)/python -m benchmarks.mirror_shapes

.PHONY: bench-audit-huge
bench-audit-huge: setup ## what an audit takes at SIZES messages ("4e6 2e7 1e8 1e9"), and how it grows
	$(BIN)/python -m benchmarks.audit_huge $(SIZES)

.PHONY: bench-%
bench-%: setup ## run one benchmark, e.g. bench-columnar-decode; writes benchmarks/results/
	$(BIN)/python -m benchmarks.$(subst -,_,$*)

.PHONY: lock
lock: setup ## renew the lock files from pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header \
	  --group build --output-file requirements/build.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header \
	  pyproject.toml --output-file requirements/base.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header \
	  pyproject.toml --extra spark --extra confluent --extra web --group dev --output-file requirements/all.txt

.PHONY: clean
clean: ## remove .venv and everything that was built
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Tests that judge with system tools list what is missing as 'not run'; APT=yes installs it.
.PHONY: system-packages
system-packages:
ifeq ($(APT),yes)
	@sh scripts/system_packages.sh
endif
