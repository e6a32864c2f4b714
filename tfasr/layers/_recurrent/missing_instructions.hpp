// Carries out instructions that this processor lacks, so that what is made of them can be tested.
#pragma once

#include <cstdint>

#include "instruction_set.hpp"

// Where instructions of tiles and of bfloat16 products are read and carried out: amx.cpp has to be
// compiled, and the signal's frame has to be Linux's for x86-64.
#if defined(RECURRENT_AMX)
#define RECURRENT_INTERPRETS
#endif

namespace recurrent {

struct CarriedOut {
  std::uint64_t of_tiles = 0;
  std::uint64_t of_pair_products = 0;
};

// From now on, what the processor refuses (SIGILL) is carried out here if it is an instruction of
// AMX-TILE, AMX-BF16 or a product of AVX512-BF16, as Intel's manual describes it; any other ends
// the process as before. What the manual forbids, such as a product of tiles that do not fit, ends
// it with a message. Thousands of times slower than a processor.
void carry_out_missing_instructions();

// How many were, by all threads.
CarriedOut carried_out();

// Whether this thread has left its tiles configured.
bool tiles_in_use();

}  // namespace recurrent
