// Which instruction sets there are, and which of them this processor has.
#pragma once

#include <vector>

#include "problem.hpp"

namespace recurrent {

extern const Steps k_portable;
#if defined(__x86_64__) && defined(__GNUC__)
extern const Steps k_avx2, k_avx512, k_avx512bf16;
#endif

// From the most to the least; the last one runs everywhere.
inline std::vector<const Steps*> steps_here() {
  std::vector<const Steps*> found;
#if defined(__x86_64__) && defined(__GNUC__)
  for (const Steps* steps : {&k_avx512bf16, &k_avx512, &k_avx2}) {
    if (steps->runs_here()) found.push_back(steps);
  }
#endif
  found.push_back(&k_portable);
  return found;
}

}  // namespace recurrent
