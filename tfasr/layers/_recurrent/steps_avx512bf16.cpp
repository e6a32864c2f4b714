// The steps for processors with avx512bf16.
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
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")
#endif

namespace recurrent {
namespace {

#define LANES 16
#define FORWARD_ROWS 6
#define BACKWARD_ROWS 6
#define BACKWARD_PANELS 4
#define PAIRS
#include "steps.inc"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

bool runs_here() {
  return __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16");
}

}  // namespace

extern const Steps k_avx512bf16{"avx512bf16", runs_here, forward_of<float>, forward_of<Bfloat16>,
                        backward_of<float>, backward_of<Bfloat16>,
                        normalise_forward<float>, normalise_forward<Bfloat16>,
                        normalise_backward<float>, normalise_backward<Bfloat16>};

}  // namespace recurrent
#endif
