# All you need is Python 3.11+ and make. The first target builds .venv; the server comes with it.

PYTHON ?= python3
VENV ?= .venv
# Options for pytest, such as `make test TESTS="-n 0 -k lease tests/races"`.
TESTS ?= -n 4 --dist worksteal
BENCH ?=
RIVALS ?=
# Where Debian's packages put the server, and plpgsql_check beside it.
DEBIAN_15 ?= /usr/lib/postgresql/15

bin := $(VENV)/bin
# In the environment, not beside it: gone when that is gone.
installed := $(VENV)/installed

.DEFAULT_GOAL := help

.PHONY: reference docs figures measure screens pictures release
.PHONY: help demo test test-all test-versions check check-sql vendor bench rivals scale chaos digest clean

help: ## what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

demo: $(installed) ## watch a small shop at work, on a server of its own; in a terminal, also on its pages until Ctrl-C
	@echo "demo: a shop takes orders, two workers handle them, one is killed; ten seconds"
	@$(bin)/pgqueue demo $$(test -t 0 && test -t 1 && echo --pages)

test: $(installed) ## run the tests, on PGQUEUE_TEST_DSN, Docker, or the embedded server
	$(bin)/pytest -m "not long" $(TESTS)

test-all: $(installed) ## run them all: also the models, soaks, browser walks and random calls that take long
	$(bin)/pytest $(TESTS)

test-versions: $(installed) ## run the tests of the SQL on PostgreSQL 14 to 18; needs npm
	$(bin)/python -m tests.versions $(VERSIONS)

check: $(installed) ## style, types and the floors of the house
	$(bin)/ruff format --check
	$(bin)/ruff check
	$(bin)/mypy
	$(bin)/mypy tests benchmarks
	$(bin)/lint-imports

check-sql: $(installed) ## what plpgsql_check says of the SQL; needs Debian's PostgreSQL 15
	@if test -f $(DEBIAN_15)/lib/plpgsql_check.so; then \
		env -u PGQUEUE_TEST_DSN PGQUEUE_EMBEDDED_BINARIES=$(DEBIAN_15)/bin $(bin)/pytest -q tests/catalog/test_plpgsql_check.py; \
	else \
		echo "check-sql: not run; apt-get install postgresql-15 postgresql-15-plpgsql-check"; \
	fi

vendor: $(installed) ## fetch what the pages carry of others anew from npm, and write its sums; needs npm
	$(bin)/python -m pgqueue.web.vendor

reference: $(installed) ## write the pages of docs/reference/ anew from what they describe
	PGQUEUE_WRITE_DOCS=1 $(bin)/pytest -q -n 0 tests/docs/test_reference.py

figures: $(installed) ## draw the figures of docs/ anew from their text, and write the index llms.txt
	$(bin)/python -m docs.tools.figures
	$(bin)/python -m docs.tools.llms
	$(bin)/python -m docs.tools.measured
	$(bin)/python -m docs.tools.rivals
	$(bin)/python -m docs.tools.failover

docs: $(installed) ## build the pages into build/docs, warnings being errors; check links, outside ones where there is a network
	$(bin)/sphinx-build -q -W -n --keep-going -j 2 -b html docs build/docs
	@if $(bin)/python -c 'import socket; socket.create_connection(("www.postgresql.org", 443), 3)' 2>/dev/null; then \
		$(bin)/sphinx-build -q -b linkcheck docs build/links; \
	else \
		echo "docs: links to other sites are not checked: there is no network"; \
	fi

screens: $(installed) ## take pictures of every page, full and empty, wide and narrow, light and dark; or of those at ADDRESS; needs chromium
	$(bin)/python -m tests.web.screenshots build/screens $(ADDRESS)

pictures: $(installed) ## take the pictures of docs/operate/web.md anew, of a demo database; needs chromium
	$(bin)/python -m tests.web.screenshots --docs docs/operate/pictures

release: $(installed) ## build a release up to the upload into dist/, twice and compared, with its bill of materials
	packaging/release dist

bench: $(installed) ## measure the figures of the README
	$(bin)/pgqueue bench $(BENCH)

measure: $(installed) ## measure what docs/explanation/figures.md shows anew, for some hours: make measure BENCH=drain
	$(bin)/python -m benchmarks --save $(BENCH) || true
	$(bin)/python -m docs.tools.measured

rivals: $(installed) ## measure other queues beside ours, an hour or two; fetches them from npm and PyPI: make rivals RIVALS="pg-boss --save"
	$(bin)/python -m benchmarks.rivals $(RIVALS)

scale: $(installed) ## measure the cost of a job, and draw where the first limit is; needs matplotlib (extra docs)
	$(bin)/python -m benchmarks.scale calibrate
	$(bin)/python -m benchmarks.scale

chaos: $(installed) ## break everything for PGQUEUE_CHAOS_MINUTES, over PGQUEUE_CHAOS_JOBS jobs; see tests/chaos/REPORT.md
	$(bin)/python -m tests.chaos

digest: ## pin the digest of sql/ in the newest revision, after a change of it
	sed -i 's/^SQL_DIGEST = .*/SQL_DIGEST = "'$$($(bin)/python -m pgqueue.schema.bundled)'"/' $$(ls migrations/versions/[0-9]*.py | tail -1)

clean: ## remove whatever git does not know, save the embedded server's data
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(installed): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("pgqueue needs Python 3.11 or newer; name it: make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	@echo "installing pgqueue and what its tests need into $(VENV): about a minute, once"
	@test -x $(bin)/python || $(PYTHON) -m venv $(VENV)
	@$(bin)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
