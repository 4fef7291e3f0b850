# `make demo` and `make test` work on a machine with nothing but Python 3.11 and make; with a C compiler, faster.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-plain coverage sanitize check fix bench clean

demo: .venv/ready
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo.sh $(if $(TO),runs/demo-$(TO) $(TO))

test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# The model and its training once more, without our kernels: what runs where there is no C compiler.
test-plain: .venv/ready
	HEEDFUL_KERNELS=off OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests/model tests/training tests/test_objectives.py tests/test_compatibility.py

# Which lines the tests run; those of commands that run as processes of their own are not counted. A sixth slower.
coverage: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --cov=heedful --cov-report=term:skip-covered

# The kernels with gcc's sanitizers, their tests and a fuzzer; CASES=40: so many cases of the fuzzer, and no tests.
sanitize: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.model.cpu.sanitized $(if $(CASES),--cases $(CASES))

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	sh benchmarks/peers.sh
	$(BIN)/python benchmarks/run.py --out benchmarks/results.md

fix: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/ready: pyproject.toml constraints.txt $(wildcard src/heedful/model/cpu/native/*)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch>=2.13,<2.14"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
