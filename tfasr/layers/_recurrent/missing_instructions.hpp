// Emulates instructions that this processor lacks, so that kernels that use them can be tested.
#pragma once

#include <cstdint>

#include "instruction_set.hpp"

// Emulation needs a compiler that knows AMX, and Linux on x86-64, whose signal frames it reads.
#if defined(RECURRENT_AMX)
#define RECURRENT_INTERPRETS
#endif

namespace recurrent {

struct CarriedOut {
  std::uint64_t of_tiles = 0;
  std::uint64_t of_pair_products = 0;
};

// After this call, instructions that the processor refuses (SIGILL) are emulated as Intel's manual
// describes them, if they belong to AMX-TILE or AMX-BF16 or are products of AVX512-BF16. Any other
// ends the process, as before. What the manual forbids, such as a product of tiles of unfit sizes,
// ends the process with a message. Emulation is thousands of times slower than a processor.
void carry_out_missing_instructions();

// How many instructions all threads have emulated.
CarriedOut carried_out();

// Whether this thread has left its tiles configured.
bool tiles_in_use();

}  // namespace recurrent
