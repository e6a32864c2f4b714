# Included by the top Makefile: campaigns that take minutes, see docs/reliability.md.

.PHONY: mutants fuzz soak

# Small wrong changes of the library, each put to the tests of its room: what do they notice?
MUTANTS ?= 400
MUTATION_SEED ?= 12
mutants: $(VENV)/dev.installed
	$(BIN)/python campaigns/mutation.py --count $(MUTANTS) --seed $(MUTATION_SEED)

# Damaged and forged files, many more than `make test` looks at.
FUZZ_EXAMPLES ?= 5000
fuzz: $(VENV)/dev.installed
	TFASR_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest tests/reliability -k fuzz

# The demo's model for 500 epochs: does its memory grow, do the ledger and the report stay linear?
soak: $(VENV)/demo.installed
	$(BIN)/python campaigns/soak.py
