# Included by the top Makefile: campaigns that take minutes, see docs/reliability.md.

.PHONY: mutants fuzz soak

# Small wrong changes of the code that results rest on ([mutmut] in setup.cfg): do tests notice?
# A module or a function alone: make mutants MUTANTS='tfasr.scoring.*'. Survivors one by one:
# .venv/bin/mutmut results, .venv/bin/mutmut show NAME.
MUTANTS ?=
mutants: $(VENV)/dev.installed
	$(BIN)/python -m pip install -qq 'mutmut==3.8.*'
	$(BIN)/mutmut run $(MUTANTS)

# Damaged and forged files, many more than `make test` looks at.
FUZZ_EXAMPLES ?= 5000
fuzz: $(VENV)/dev.installed
	TFASR_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest tests/reliability -k fuzz

# The demo's model for 500 epochs: does its memory grow, do the ledger and the report stay linear?
soak: $(VENV)/demo.installed
	$(BIN)/python campaigns/soak.py
