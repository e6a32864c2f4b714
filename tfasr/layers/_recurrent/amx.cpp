// The kernels for processors with bfloat16 tiles (Intel AMX) and AVX-512.
#include "kernels.hpp"

#ifdef RECURRENT_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,amx-tile,amx-bf16"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,amx-tile,amx-bf16")
#endif

namespace recurrent {
namespace {

// Stops the compiler, which doesn't know that tile instructions access memory, from reordering.
inline void keep_order() { asm volatile("" ::: "memory"); }

// Tile numbers are part of the instructions, so GCC requires literal numbers.
struct ProcessorTiles {
  static void configure(std::size_t rows) {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } configuration;
    static_assert(sizeof configuration == 64);
    for (int tile = 0; tile < 8; ++tile) {
      configuration.row_bytes[tile] = 64;
      configuration.rows[tile] = tile < 5 ? static_cast<std::uint8_t>(rows) : 16;
    }
    keep_order();
    _tile_loadconfig(&configuration);
  }

  static void release() { _tile_release(); }

  template <int PANELS>
  static void zero() {
    if constexpr (PANELS > 0) _tile_zero(0);
    if constexpr (PANELS > 1) _tile_zero(1);
    if constexpr (PANELS > 2) _tile_zero(2);
    if constexpr (PANELS > 3) _tile_zero(3);
  }

  static void load_rows(const Bfloat16* from, std::size_t stride_bytes) {
    keep_order();
    _tile_loadd(4, from, stride_bytes);
  }

  template <int SUM>
  static void add_product(const Bfloat16* panel, std::size_t stride_bytes) {
    if constexpr (SUM == 0) {
      _tile_loadd(5, panel, stride_bytes);
      _tile_dpbf16ps(0, 4, 5);
    } else if constexpr (SUM == 1) {
      _tile_loadd(6, panel, stride_bytes);
      _tile_dpbf16ps(1, 4, 6);
    } else if constexpr (SUM == 2) {
      _tile_loadd(7, panel, stride_bytes);
      _tile_dpbf16ps(2, 4, 7);
    } else {
      _tile_loadd(5, panel, stride_bytes);
      _tile_dpbf16ps(3, 4, 5);
    }
  }

  template <int PANELS>
  static void store(float* to, std::size_t stride_bytes) {
    if constexpr (PANELS > 0) _tile_stored(0, to, stride_bytes);
    if constexpr (PANELS > 1) _tile_stored(1, to + 16, stride_bytes);
    if constexpr (PANELS > 2) _tile_stored(2, to + 32, stride_bytes);
    if constexpr (PANELS > 3) _tile_stored(3, to + 48, stride_bytes);
    keep_order();
  }
};

#include "tiles.inc"

struct Traits {
  static constexpr bool kRegister = true;
  static constexpr int kLanes = 16, kForwardRows = 6, kBackwardRows = 6, kBackwardPanels = 4;
  using RoundedProduct = TileProduct<ProcessorTiles>;
};

#include "kernels.inc"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

// Whether the processor has tiles and Linux lets this process use them. One request is enough for
// all of its threads. Older Linux kernels, and virtual machines that hide tiles, refuse.
bool tiles_granted() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  constexpr unsigned kBfloat16 = 1u << 22, kTile = 1u << 24;
  if (!(edx & kBfloat16) || !(edx & kTile)) return false;
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

bool runs_here() {
  static const bool runs =
      k_avx512.runs_here() && tiles_granted() && multiplies_rightly<ProcessorTiles>();
  return runs;
}

}  // namespace

extern const InstructionSet k_amx = instruction_set("amx", runs_here);

}  // namespace recurrent
#endif
