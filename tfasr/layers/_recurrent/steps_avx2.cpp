// The steps for processors with avx2.
#if defined(__x86_64__) && defined(__GNUC__)
#include <algorithm>
#include <cstring>
#include <deque>
#include <type_traits>

#include <immintrin.h>

#include "buffer.hpp"
#include "problem.hpp"
#include "team.hpp"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace recurrent {
namespace {

#define LANES 8
#define FORWARD_ROWS 2
#define BACKWARD_ROWS 4
#define BACKWARD_PANELS 2
#include "steps.inc"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

bool runs_here() {
  return __builtin_cpu_supports("avx2") &&
         __builtin_cpu_supports("fma");
}

}  // namespace

extern const Steps k_avx2{"avx2", runs_here, forward_of<float>, forward_of<Bfloat16>,
                        backward_of<float>, backward_of<Bfloat16>,
                        normalise_forward<float>, normalise_forward<Bfloat16>,
                        normalise_backward<float>, normalise_backward<Bfloat16>};

}  // namespace recurrent
#endif
