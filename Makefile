# `make demo` and `make test` do all the set-up they need: python3, pip and make are enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready

.PHONY: demo test test-browser test-long nginx bench bench-gpu audit format clean

demo: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/cofair compare --data digits --scene pow --methods all --rounds 60 --held --out demo --overwrite

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(BIN)/python -m tests.report.browser || true
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --cov --cov-report=
	@echo "covered: $$($(BIN)/coverage report --format=total) % (coverage report -m shows the rest)"

# what a deployment lets participants in through; without it the tests that start a real server are skipped
nginx:
	@command -v nginx >/dev/null || test -x /usr/sbin/nginx || { \
		root=; test "$$(id -u)" = 0 || root=sudo; \
		$$root apt-get update --quiet=2 && $$root apt-get install --yes --quiet=2 --no-install-recommends nginx-light; }

# the report in a real browser; installs Debian's chromium where none is found
test-browser: $(READY)
	@$(BIN)/python -m tests.report.browser || { \
		root=; test "$$(id -u)" = 0 || root=sudo; \
		$$root apt-get update --quiet=2 && $$root apt-get install --yes --quiet=2 --no-install-recommends chromium; }
	$(BIN)/python -m pytest -m browser -rs

# what takes minutes, needs fetched data or a package registry; network namespaces and other users need root
test-long: $(READY) nginx
	$(BIN)/python -m pytest -m long

bench: $(READY) nginx
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.scoring
	$(BIN)/python -m benchmarks.importance
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.shapley
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.sweep --alone
	$(BIN)/python -m benchmarks.flower
	$(BIN)/python -m benchmarks.proxy

# on a machine with a GPU: a step against the GPU's own rate, run-rounds of each method, and the papers' tables whole; where several
# processes share it, start NVIDIA's multi-process service first (nvidia-cuda-mps-control -d)
bench-gpu: $(READY)
	$(BIN)/python -m benchmarks.training --device cuda --precision tf32 --model mlp --clients 10 100 750
	$(BIN)/python -m benchmarks.training --device cuda --precision tf32 --model cnn cnn-mnist resnet --clients 10 40
	$(BIN)/python -m benchmarks.sweep --device cuda --precision tf32 --runs 20 --alone
	$(BIN)/python -m benchmarks.sweep --device cuda --precision tf32 --runs 8 --rounds 60 --processes 15 --methods fedrac
	for table in fedsac-table2 fedsac-table4 fedsac-table7 fedrac-table2 fedrac-table5; do \
	    $(BIN)/cofair reproduce $$table --device cuda --precision tf32 --workers 14 --out bench-gpu || exit 1; \
	done
	for cells in mnist cifar10; do for table in cgsv-table1 fedave-table3; do \
	    $(BIN)/cofair reproduce $$table --cells $$cells --device cuda --precision tf32 --workers 4 --out bench-gpu || exit 1; \
	done; done
# large models, fewer at a time: each process holds all its runs' clients
	for large in cgsv-table1:mr cgsv-table1:sst fedave-table3:emnist-letters; do \
	    $(BIN)/cofair reproduce $${large%:*} --cells $${large#*:} --device cuda --precision tf32 --workers 2 --out bench-gpu || exit 1; \
	done
	$(BIN)/cofair reproduce fedave-table4 --device cuda --precision tf32 --workers 5 --out bench-gpu
	$(BIN)/cofair reproduce cgsv-table3 --device cuda --precision tf32

# known vulnerabilities of the versions that `make` installs; PyPI must be reachable, and no answer is a failure
audit:
	$(PYTHON) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python -m pip install --quiet pip-audit || { \
		echo "pip-audit cannot be installed here, so nothing was audited."; exit 1; }
	$(VENV)/audit/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache

# installed anew only when what is installed has changed
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cofair needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)
