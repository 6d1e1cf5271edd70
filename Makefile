# The commands for daily work. Everything runs in .venv, which is created on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: install demo demo-ppo demo-agent demo-distill test test-all test-durations test-sglang test-gpu lint format bench bench-gpu docs docs-example docs-check clean

install: $(VENV)/installed-dev

PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Everything that a run needs. The tests' packages are separate, because some of them compile where there is no wheel.
$(VENV)/installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV): 2 GB with torch for CPUs, more with torch for GPUs; some minutes."
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP_INSTALL) -e ".[dev]"
	touch $@

# One thread: a model this small gains little from a second one, and on a busy machine waiting for it costs far more.
demo demo-ppo demo-agent demo-distill: export OMP_NUM_THREADS ?= 1

demo: $(VENV)/installed  ## a small MiniMind learns to add; DEMO_ARGS="--seed 1" passes flags
	$(BIN)/python recipes/grpo.py $(DEMO_ARGS)

demo-ppo: $(VENV)/installed  ## the same with PPO
	$(BIN)/python recipes/ppo.py $(DEMO_ARGS)

demo-agent: $(VENV)/installed  ## a small MiniMind learns to use a calculator; DEMO_ARGS="--task guess" plays a game
	$(BIN)/python recipes/agent.py $(DEMO_ARGS)

demo-distill: $(VENV)/installed  ## a small MiniMind learns to add from one that can; trains the teacher first
	$(BIN)/python recipes/distill.py $(DEMO_ARGS)

# Side by side, each with one thread; three share two cores, since those that start servers often wait. tests/conftest.py
# says which tests stay together.
TEST_WORKERS ?= 3
PYTEST = $(BIN)/python -m pytest -n $(TEST_WORKERS) --no-loadscope-reorder

test test-all test-durations: export OMP_NUM_THREADS ?= 1
# Where it is set, as in many images, each of the processes that tests start would compile everything again.
test test-all test-durations: export PYTHONDONTWRITEBYTECODE =

test: install  ## the quick tests
	$(PYTEST) -m "not slow"

test-all: install  ## all tests, including those marked slow
	$(PYTEST)

test-durations: install  ## the quick tests, and the slowest of them as CONTRIBUTING.md lists them
	$(PYTEST) -m "not slow" --slowest 20

test-sglang: install  ## with a real server; MINIMIND_HF_SGLANG_SERVE: a command that takes a model folder and a port
	@test -n "$$MINIMIND_HF_SGLANG_SERVE" || { echo "set MINIMIND_HF_SGLANG_SERVE, see docs/rollout-engines.md"; exit 2; }
	$(BIN)/python -m pytest -m sglang -rs

test-gpu: install  ## what needs a CUDA device
	$(BIN)/python -m pytest -m gpu -rs

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install  ## against trl and model.generate; on a quiet machine
	$(BIN)/python benchmarks/step_time.py --workload chat
	$(BIN)/python benchmarks/rollout.py --workload chat --dtype float32

bench-gpu: install  ## everything about one CUDA device, in 20 minutes; writes docs/benchmarks-gpu.md
	$(BIN)/python benchmarks/gpu.py

docs: install  ## the documentation as a site in build/site
	$(PIP_INSTALL) -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

docs-example: DEMO_ARGS = --run_name "make demo"
docs-example: demo  ## the demo, the curve and the picture of its report that the documentation shows; needs chromium
	$(BIN)/python docs/site/example.py

docs-check: install  ## runs every command of README.md, README_zh.md and docs/ in a scratch folder
	$(BIN)/python docs/check.py $(DOCS_CHECK_ARGS)

clean:
	rm -rf $(VENV) outputs build
