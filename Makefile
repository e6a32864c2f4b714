# Two commands: make demo, make test. Both make .venv where it is missing or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-long test-measure test-tfio lint docs notebooks measured release torture clean

demo: $(VENV)/demo.installed
	$(BIN)/tfasr demo

test: $(VENV)/dev.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

# Kernels that this processor lacks, notebooks, every command of docs/sources.md, studies that are killed,
# an audit of dependencies, tests/layers and tests/training with each instruction set: hours.
test-long: $(VENV)/dev.installed recurrent-interpreted
	$(BIN)/python -m pytest -m long

# tensorflow-io decodes FLAC files for training, with the last TensorFlow that it was built for.
test-tfio: build/tfio/installed
	build/tfio/bin/python -m pytest tests/data/test_audio.py tests/data/test_tensorflow_io.py

# tfasr-measure, the wheel without training: first alone, then with the extras that tests need. The
# tests run in a copy of their folder, where Python finds the installed tfasr and not this one.
# tests/ledger/test_schema.py reads runs whose fixture imports Keras.
MEASURING_TESTS := tests/ledger tests/recording tests/scoring tests/display tests/test_alphabet.py tests/test_letters.py \
	--ignore tests/ledger/test_schema.py

test-measure:
	rm -rf build/measure measure/build
	$(PYTHON) -m venv build/measure
	build/measure/bin/python -m pip install -qq ./measure hypothesis pytest
	mkdir build/measure/run
	cp -r docs setup.cfg tests build/measure/run
	cd build/measure/run && ../bin/python -m pytest tests/test_measure.py
	build/measure/bin/python -m pip install -qq './measure[figures,flagfile,notebook]'
	cd build/measure/run && ../bin/python -m pytest $(MEASURING_TESTS)

lint: $(VENV)/dev.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a site in build/site; a broken link or reference is an error.
docs: $(VENV)/dev.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Runs the notebooks from first to last and keeps their answers and pictures in them.
notebooks: $(VENV)/dev.installed
	$(BIN)/python docs/site/run_notebooks.py

# Measures what docs/measured.md quotes, with the peers, on an idle machine: hours. CORPORA: a folder
# with an4, librispeech and decoding, see benchmarks/measured.py.
measured: $(VENV)/measured.installed
	$(BIN)/python benchmarks/measured.py --corpora $(CORPORA)

# Wheels for each installed CPython, their hashes and a bill of materials: release/README.md.
release: $(VENV)/release.installed
	$(BIN)/python release/wheels.py --twice --out dist
	$(PYTHON) -m venv --clear build/release
	build/release/bin/python -m pip install -qq --find-links dist 'tfasr[demo,export,serve]'
	$(BIN)/cyclonedx-py environment --output-reproducible --output-file dist/tfasr.cdx.json \
		build/release/bin/python

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --upgrade pip

# The C++ parts are built by the install, so their sources are prerequisites too.
SOURCES := setup.py setup.cfg pyproject.toml constraints.txt $(wildcard tfasr/decoding/_word_beam/*) \
	$(wildcard tfasr/layers/_recurrent/*)

$(VENV)/demo.installed: $(BIN)/python $(SOURCES)
	@echo "Installing tfasr and TensorFlow into $(VENV); this takes some minutes."
	$(BIN)/python -m pip install -qq --constraint constraints.txt --editable '.[demo]'
	touch $@

$(VENV)/dev.installed: $(BIN)/python $(SOURCES)
	@echo "Installing tfasr, TensorFlow and the test tools into $(VENV); this takes some minutes."
	$(BIN)/python -m pip install -qq --constraint constraints.txt --editable '.[demo,dev]'
	touch $@ $(VENV)/demo.installed

$(VENV)/measured.installed: $(VENV)/dev.installed
	$(BIN)/python -m pip install -qq --constraint constraints.txt --editable '.[demo,dev,peers,kenlm]'
	touch $@

build/tfio/installed: setup.cfg
	@command -v python3.11 > /dev/null || { \
		echo "make test-tfio needs Python 3.11 as python3.11: install it, or use uv or pyenv."; exit 1; }
	python3.11 -m venv --clear build/tfio
	build/tfio/bin/python -m pip install -qq --editable '.[demo,tfio]' 'tensorflow==2.16.2' hypothesis pytest
	touch $@

$(VENV)/release.installed: $(BIN)/python
	$(BIN)/python -m pip install -qq cyclonedx-bom
	touch $@

# Kills, power losses and faults, see docs/reliability.md: MINUTES of kills, further ones each time.
MINUTES ?= 10
SEED ?= 1
TORTURE ?= torture

torture: $(VENV)/dev.installed
	$(BIN)/python -m campaigns.torture --minutes $(MINUTES) --seed $(SEED) --out $(TORTURE)
	$(BIN)/python -m campaigns.power_loss --seed $(SEED)
	$(BIN)/python -m campaigns.faults --seed $(SEED)

# decoder-sanitize, decoder-fuzz, decoder-warnings: the C++ decoder under sanitizers and fuzzing.
include tfasr/decoding/_word_beam/sanitize.mk
# recurrent-sanitize: the recurrent layers' compiled steps likewise.
include tfasr/layers/_recurrent/sanitize.mk
# mutants, fuzz, soak: do the tests notice, do damaged files end in a traceback, does a run grow?
include campaigns/notice.mk

clean:
	rm -rf $(VENV) build dist *.egg-info demo
