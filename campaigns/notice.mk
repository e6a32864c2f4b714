# Included by the top Makefile: campaigns that take minutes, see docs/reliability.md.

.PHONY: mutants fuzz soak

# Small wrong changes of the code that results rest on ([mutmut] in setup.cfg): do tests notice?
# A module or a function alone: make mutants MUTANTS='tfasr.scoring.*'. Survivors one by one:
# .venv/bin/mutmut results, .venv/bin/mutmut show NAME.
MUTANTS ?=
mutants: $(VENV)/dev.installed
	$(BIN)/python -m pip install -qq 'mutmut==3.8.*'
	$(BIN)/mutmut run $(MUTANTS)

# Property tests with examples that `make test` doesn't try, others in each run; then many damaged and
# forged files.
FUZZ_EXAMPLES ?= 5000
fuzz: $(VENV)/dev.installed
	$(BIN)/python -m pytest -m "hypothesis and not long" --hypothesis-profile random
	TFASR_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest tests/reliability -k fuzz \
		--hypothesis-profile random

# The demo's model for 500 epochs: does its memory grow, do the ledger and the report stay linear?
soak: $(VENV)/demo.installed
	$(BIN)/python campaigns/soak.py
