// The kernels for processors with AVX-512.
#include "kernels.hpp"

#ifdef RECURRENT_X86
#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#endif

namespace recurrent {
namespace {

struct Traits {
  static constexpr bool kRegister = true;
  static constexpr int kLanes = 16, kForwardRows = 6, kBackwardRows = 6, kBackwardPanels = 4;
  using RoundedProduct = void;
};

#include "kernels.inc"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

bool runs_here() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("fma");
}

}  // namespace

extern const InstructionSet k_avx512 = instruction_set("avx512", runs_here);

}  // namespace recurrent
#endif
