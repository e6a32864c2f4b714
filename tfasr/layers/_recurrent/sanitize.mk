# Included by the top Makefile. Builds and tests the layers' C++ with sanitizers, under build/.

RECURRENT := tfasr/layers/_recurrent
RECURRENT_CORE := $(filter-out $(wildcard $(RECURRENT)/binding*.cpp),$(wildcard $(RECURRENT)/*.cpp))
FUZZ_RUNS ?= 20000
RECURRENT_FLAGS := -std=c++17 -g -O1 -pthread -Wall -Wextra -Wpedantic -Werror

build/recurrent_fuzz_%: $(RECURRENT_CORE) $(wildcard $(RECURRENT)/*.hpp) $(wildcard $(RECURRENT)/*.inc)
	mkdir -p build
	$(CXX) $(RECURRENT_FLAGS) $(RECURRENT_MODE_$*) $(RECURRENT_CORE) -o $@ -ldl

RECURRENT_MODE_memory := -D_GLIBCXX_ASSERTIONS -fsanitize=address,undefined \
	-fno-sanitize-recover=all -fno-omit-frame-pointer
RECURRENT_MODE_threads := -fsanitize=thread
# The flags of setup.py.
RECURRENT_MODE_shipped := -O3 -ffp-contract=fast

.PHONY: recurrent-sanitize recurrent-interpreted

# Random problems under AddressSanitizer and UndefinedBehaviorSanitizer, then ThreadSanitizer.
recurrent-sanitize: build/recurrent_fuzz_memory build/recurrent_fuzz_threads
	build/recurrent_fuzz_memory $(FUZZ_RUNS)
	build/recurrent_fuzz_threads $(FUZZ_RUNS)

# Tests the AMX and AVX512-BF16 kernels by emulation, on processors that have AVX-512 but not these.
INTERPRETED_RUNS ?= 1000
recurrent-interpreted: build/recurrent_fuzz_shipped build/recurrent_fuzz_memory
	build/recurrent_fuzz_shipped $(INTERPRETED_RUNS) 0 interpreted
	build/recurrent_fuzz_memory $(INTERPRETED_RUNS) 0 interpreted
