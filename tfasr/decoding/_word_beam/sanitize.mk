# Included by the top Makefile. Builds one test program per mode (plain, memory, threads) in build/.

WORD_BEAM := tfasr/decoding/_word_beam
WORD_BEAM_CORE := $(filter-out $(WORD_BEAM)/binding.cpp,$(wildcard $(WORD_BEAM)/*.cpp))
WORD_BEAM_FLAGS := -std=c++17 -g -ffp-contract=off -pthread -Wall -Wextra -Wpedantic -Werror
FUZZ_RUNS ?= 20000

build/word_beam_fuzz_%: $(WORD_BEAM_CORE) $(wildcard $(WORD_BEAM)/*.hpp)
	mkdir -p build
	$(CXX) $(WORD_BEAM_FLAGS) $(WORD_BEAM_MODE_$*) $(WORD_BEAM_CORE) -o $@

WORD_BEAM_MODE_plain := -O2 -D_GLIBCXX_ASSERTIONS
WORD_BEAM_MODE_memory := -O1 -D_GLIBCXX_ASSERTIONS -fsanitize=address,undefined \
	-fno-sanitize-recover=all -fno-omit-frame-pointer
WORD_BEAM_MODE_threads := -O1 -fsanitize=thread

.PHONY: decoder-sanitize decoder-fuzz decoder-warnings

# Random problems under AddressSanitizer and UndefinedBehaviorSanitizer, then ThreadSanitizer.
decoder-sanitize: build/word_beam_fuzz_memory build/word_beam_fuzz_threads
	build/word_beam_fuzz_memory $(FUZZ_RUNS)
	build/word_beam_fuzz_threads $(FUZZ_RUNS)

# Ten times as many problems without sanitizers, then arbitrary input through the Python binding.
decoder-fuzz: build/word_beam_fuzz_plain $(VENV)/dev.installed
	build/word_beam_fuzz_plain $$((10 * $(FUZZ_RUNS)))
	$(BIN)/python -m pytest tests/decoding/test_word_beam_search.py -k any_input

# Compiles every source file except the binding with CXX, warnings being errors.
decoder-warnings:
	for source in $(WORD_BEAM_CORE); do \
		$(CXX) $(WORD_BEAM_FLAGS) -Wconversion -Wshadow -O2 -c $$source -o /dev/null || exit 1; \
	done
