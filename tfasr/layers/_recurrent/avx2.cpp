// The kernels for processors with AVX2.
#include "kernels.hpp"

#ifdef RECURRENT_X86
#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace recurrent {
namespace {

struct Traits {
  static constexpr bool kRegister = true;
  static constexpr int kLanes = 8, kForwardRows = 2, kBackwardRows = 4, kBackwardPanels = 2;
  using RoundedProduct = void;
};

#include "kernels.inc"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

bool runs_here() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

}  // namespace

extern const InstructionSet k_avx2 = instruction_set("avx2", runs_here);

}  // namespace recurrent
#endif
