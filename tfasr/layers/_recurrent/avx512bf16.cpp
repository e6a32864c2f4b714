// The kernels for processors with AVX-512 that can multiply bfloat16.
#include "kernels.hpp"

#ifdef RECURRENT_X86
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

// Multiplies bfloat16 in pairs, so two rows of a panel are interleaved.
struct PairProduct {
  static constexpr std::size_t kPair = 2, kInner = 2;
  static constexpr bool kAnyRows = false;
  static constexpr int kForwardRows = 6, kBackwardRows = 6;
  struct Session {};

  // sums (ROWS, PANELS, 16) = the matrix a times the panels.
  template <int ROWS, int PANELS>
  static void multiply(std::size_t, const Bfloat16* a, std::size_t a_stride,
                       const Bfloat16* panels, std::size_t panel_size, std::size_t inner,
                       void* sums) {
    __m512 local[ROWS][PANELS];
    for (auto& row : local) {
      for (__m512& sum : row) sum = _mm512_setzero_ps();
    }
    for (std::size_t k = 0; k < inner; k += 2) {
      __m512i b[PANELS];
#pragma GCC unroll 8
      for (int v = 0; v < PANELS; ++v) {
        b[v] = _mm512_loadu_si512(panels + static_cast<std::size_t>(v) * panel_size + k * 16);
      }
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        std::int32_t pair;
        std::memcpy(&pair, a + static_cast<std::size_t>(r) * a_stride + k, sizeof pair);
        const __m512i factor = _mm512_set1_epi32(pair);
#pragma GCC unroll 8
        for (int v = 0; v < PANELS; ++v) {
          local[r][v] = _mm512_dpbf16_ps(local[r][v], (__m512bh)factor, (__m512bh)b[v]);
        }
      }
    }
    std::memcpy(sums, local, sizeof local);
  }
};

struct Traits {
  static constexpr bool kRegister = true;
  static constexpr int kLanes = 16, kForwardRows = 6, kBackwardRows = 6, kBackwardPanels = 4;
  using RoundedProduct = PairProduct;
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
         __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx512bf16");
}

}  // namespace

extern const InstructionSet k_avx512bf16 = instruction_set("avx512bf16", runs_here);

}  // namespace recurrent
#endif
