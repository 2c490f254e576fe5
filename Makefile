# Two commands on a fresh machine with Python 3.11 or later and make: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# or every process that a test starts compiles the library again
unexport PYTHONDONTWRITEBYTECODE
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
NEWEST := .newest/.ready
BORDERS := tests/interop tests/cli/test_cli_convert.py tests/test_hugging_face_page.py \
	$(addprefix tests/laws/test_,caches.py looks.py targets.py what_is_not_broken.py) \
	tests/models/test_huggingface.py tests/models/test_outside.py tests/genes/mixers/test_longformer.py \
	tests/genes/mixers/test_bigbird.py tests/genes/mixers/test_reformer_oracles.py tests/generation/test_beam.py \
	tests/engines/test_kernel_fla.py tests/lab/bench/test_bench.py tests/data/episodes/test_minari.py

BOARDS ?= $(shell sed -n 's/^\([a-z0-9.-]*\) |.*/\1/p' boards.txt)
# boards that are recorded: of the laws, and of probes (mini and what is held against it)
BOARDED = $(patsubst %/,%,$(sort $(wildcard docs/board/*/)))
# of the line of boards.txt that a target names
column = $(shell sed -n 's/^$* | *//p' boards.txt | cut -d'|' -f$(1))

.PHONY: demo test test-part test-all test-changed borders board mutations gpu lint types docs docs-site dist clean

# nine trainings of 200 steps, after which models of this size beat counting; steps, not seconds,
# so that other work on the machine makes them late, not unequal
demo: $(READY)
	$(BIN)/everyformer compare attention aft-conv gmlp --data stdlib --seeds 3 --steps 200 \
		--width 64 --layers 2 --length 128 --lr 1e-2 --lengths 256 1024 --out runs/demo --overwrite

test: lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal

# tests of what meets other libraries again, with the newest release of each
borders: $(DEV) $(NEWEST)
	PYTHONPATH=$(CURDIR)/.newest $(BIN)/python -m pytest -n 2 --dist worksteal --newest newest.txt $(BORDERS)

# every law on all models of libraries (boards.txt), in runs/boards, against what docs/board records
board: $(BOARDS:%=board-%)

board-%:
	$(PYTHON) -m venv runs/environments/$*
	runs/environments/$*/bin/python -m pip install --quiet $(call column,3)
	runs/environments/$*/bin/sequence-laws board $(call column,2) --out runs/boards/$* \
		$(addprefix --against ,$(wildcard docs/board/$(strip $(call column,1))))

# of the tests that `make test` leaves out the tenth part that is drawn by the date
test-part: $(DEV)
	$(BIN)/python -m pytest -n 2 --dist worksteal --part

# all tests, before an issue is resolved, and how long each file took
test-all: lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal --full --record tests/durations.csv

# the tests that import what differs from the commit REF
test-changed: $(DEV)
	$(BIN)/python -m pytest -n 2 --dist worksteal --changed $(or $(REF),HEAD)

# whether the tests see sixty small wrong changes, each in a copy of the tree (10 minutes)
mutations: $(DEV)
	$(BIN)/python tests/mutations/run.py

# laws, the compiler and speeds on a machine with a GPU, in runs/gpu (7 minutes with 16 cores)
gpu: $(DEV)
	$(BIN)/python -m everyformer.cli.gpu

lint: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(DEV)
	$(BIN)/mypy

docs: $(DEV)
	$(BIN)/python -m everyformer.lab.pages docs

# the site in docs/_build/site, without a network; its notebooks and gallery are run
docs-site: $(DEV)
	set -e; for board in $(filter-out docs/board/mini%,$(BOARDED)); do $(BIN)/sequence-laws board --out $$board; done
	$(BIN)/python -m everyformer.lab.suites.page $(filter docs/board/mini%,$(BOARDED))
	set -e; cd docs/board; for page in */index.html; do \
		mkdir -p ../_build/boards/$$(dirname $$page); cp $$page ../_build/boards/$$page; done
	cd docs && OMP_NUM_THREADS=1 $(abspath $(BIN))/sphinx-build -W --keep-going -b html . _build/site

# wheels and source archives of both distributions, as they would be published
dist: $(READY)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet -e ./laws -e '.[ship]'
	rm -rf dist
	$(BIN)/python -m build --outdir dist laws
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

# what `make demo` needs: the library alone
$(READY): pyproject.toml laws/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet -e ./laws -e .
	touch $@

$(DEV): $(READY)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet -e ./laws -e '.[dev]'
	touch $@

# without what they depend on: that is as in constraints.txt
$(NEWEST): newest.txt | $(DEV)
	rm -rf .newest
	PIP_CONSTRAINT= $(BIN)/python -m pip install --quiet --no-deps --target .newest -r newest.txt
	mkdir .newest/beside && mv .newest/torchvision* .newest/beside
	touch $@

clean:
	rm -rf $(VENV) .newest build dist .pytest_cache .mypy_cache .ruff_cache
