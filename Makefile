# Two commands do everything: `make run` and `make test`. Each creates the environment first.
SHELL := /bin/bash
TOOLS := .tools
# The system's uv where there is one, else one from the Python package index in a private folder.
UV := $(shell command -v uv 2>/dev/null || echo $(TOOLS)/bin/uv)
PYTHON ?= python3
SEEDS ?= 200
# Tests run in so many processes side by side; ARGS="-n 0" for one, where -s and --pdb work. tests/conftest.py orders them.
SIDE_BY_SIDE := -n auto --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

.PHONY: admin-table run test env bytecode settings reference bundle lint sim fuzz damage sim-broken mutants audit release site console pins native bench bench-bookie bench-ledger bench-spark bench-offload bench-brokers clean peers model images e2e kind
run: bytecode
	.venv/bin/quire standalone $(ARGS)

# Also where Python must not write bytecode, pytest keeps its rewritten tests: to rewrite them takes each process 15 s.
test: export PYTHONDONTWRITEBYTECODE :=
test: bytecode
	$(UV) run --no-sync pytest $(SIDE_BY_SIDE) $(ARGS)

env: .venv/.ready

# Our own packages, which uv installs in place and does not compile. Python does it at the first import only where it may
# write; without it a start takes half as long again, and tests start hundreds. What has not changed is passed over: 0.2 s.
bytecode: env
	@.venv/bin/python -m compileall -q bookie/src broker/src operator/src jobs/src tests

$(TOOLS)/bin/uv:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check uv

# The versions and hashes of requirements.txt, for any package index; our own packages, in place. `make pins` refreshes them.
.venv/.ready: pyproject.toml requirements.txt $(wildcard bookie/native/Cargo.* bookie/native/*.rs bookie/native/src/*.rs) bookie/pyproject.toml broker/pyproject.toml operator/pyproject.toml jobs/pyproject.toml
	@[ -x "$(UV)" ] || command -v "$(UV)" >/dev/null || $(MAKE) $(TOOLS)/bin/uv
	$(UV) venv --quiet --allow-existing
	UV_COMPILE_BYTECODE_TIMEOUT=600 $(UV) pip sync --quiet --require-hashes --compile-bytecode requirements.txt # its 60 s are too few beside other work
	$(UV) pip install --quiet --no-deps --editable bookie --editable broker --editable operator --editable jobs
	@if command -v cargo >/dev/null; then scripts/build_native.sh || echo "the native module was not built: plain Python does its work, slower"; fi
	@.venv/bin/python -m compileall -q bookie/src broker/src operator/src jobs/src
	@touch $@

# The tables of docs/configuration.md and the operator's list of keys, from the declarations of the settings.
settings: env
	.venv/bin/python -m scripts.generate_settings

# docs/reference: commands, HTTP paths, resources and metrics, from the code.
reference: settings
	.venv/bin/python -m scripts.reference

# The bundle of the Operator Lifecycle Manager in dist/olm; ARGS="--registry REGISTRY/PROJECT" (docs/kubernetes/install.md).
bundle: env
	.venv/bin/python -m scripts.olm_bundle $(ARGS)

# The newest versions that resolve, for the environment and for the images.
pins: env
	scripts/pin.sh

lint: env
	$(UV) run --no-sync ruff check .
	$(UV) run --no-sync ruff format --check .
	$(UV) run --no-sync mypy bookie/src broker/src operator/src jobs/src tests benchmarks
	$(UV) run --no-sync lint-imports

sim: env
	PYTHONHASHSEED=0 $(UV) run --no-sync python -m tests.sim --seeds $(SEEDS) $(ARGS)

# The simulator's self-test: each deliberately broken variant of the protocol must be caught; ARGS="--known" is quick.
sim-broken: env
	PYTHONHASHSEED=0 $(UV) run --no-sync python -m tests.sim.broken $(ARGS)

# Hostile HTTP requests and binary commands for servers in one process, until time is up; ARGS="--minutes 15 --seed 1".
fuzz: bytecode
	$(UV) run --no-sync python -m tests.fuzz $(ARGS)

# Small faults in the protocol modules: which do their unit tests catch, which the simulator alone?
mutants: env
	PYTHONHASHSEED=0 $(UV) run --no-sync python -m tests.mutation $(ARGS)

# Rounds of damage to a bookie's files, and of lost power under a standalone (root and loop devices), with a check of content.
damage: env
	$(UV) run --no-sync python -m tests.damage $(ARGS)

# Known vulnerabilities of what is shipped, its pins, and dist/quire.cdx.json (docs/security.md). make turns each code but 0
# into 2; `.venv/bin/python -m scripts.audit` ends with 1: found, 3: a database could not be asked.
audit: env
	$(UV) run --no-sync python -m scripts.audit $(ARGS)

# Wheels, source distributions, the chart, an SBOM and checksums in dist/release (docs/release.md).
release: env
	.venv/bin/python -m scripts.release $(ARGS)

# The documentation as a web site in dist/site; ARGS=--serve shows it.
site: env
	.venv/bin/python -m scripts.site $(ARGS)

# The TLA+ model of one ledger (model/, docs/protocol.md); ARGS="deep" for the large runs, ARGS="broken" for the broken rules.
model:
	scripts/model/check.sh $(ARGS)

# The files of the web console that brokers serve, from console/ (docs/decisions/0024). Needs Node and npm.
console:
	npm --prefix console ci --ignore-scripts
	npm --prefix console run check
	npm --prefix console run build

bench: bytecode
	$(UV) run --no-sync python -m benchmarks $(ARGS)

# The optional native module (docs/decisions/0004): everything works and passes without it, slower. `make env` tries it.
native: env
	scripts/build_native.sh

bench-bookie: bytecode
	$(UV) run --no-sync python -m benchmarks.bench_bookie $(ARGS)

bench-ledger: bytecode
	$(UV) run --no-sync python -m benchmarks.ledger_bench $(ARGS)

# The Spark source against raw files, in one run; ARGS="--quick" for a look. Needs Java.
bench-spark: bytecode
	$(UV) run --no-sync python -m benchmarks.spark_bench $(ARGS)

# Offloading: objects against a plain upload, catch-up reads from the bucket, publishing meanwhile. Needs Java and Go.
bench-offload: bytecode
	$(UV) run --no-sync python -m benchmarks.offload_bench $(ARGS)

# Every command of stock pulsar-admin against stock Pulsar and ours: the table of docs/compatibility.md. Needs Java.
admin-table: bytecode
	scripts/compat/admin_table.sh $(ARGS)

# The time publishers wait while a topic goes to another broker; ARGS="--quick" for a look.
bench-brokers: bytecode
	$(UV) run --no-sync python -m benchmarks.brokers_bench $(ARGS)

# Container images (images/), and the tests on a real Kubernetes cluster, which they make first (docs/kubernetes/testing.md).
images:
	images/build.sh $(ARGS)

e2e: bytecode
	scripts/k8s/e2e.sh $(ARGS)

# A cluster that passed the short suite, with Quire installed.
kind: bytecode
	scripts/k8s/kind.sh $(ARGS)

peers:
	scripts/peers/fetch.sh

clean:
	rm -rf .venv $(TOOLS) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
