// The kernels for bfloat16 tiles, with tiles emulated in float, to test amx.cpp's computations on
// other processors. Used only if selected by name.
#include "kernels.hpp"

// Vectors of 16 floats aren't registers here, which changes how functions pass them. That is
// harmless, because none is passed to another source file.
#pragma GCC diagnostic ignored "-Wpsabi"
// Every installation compiles this, but only tests run it. -O1 compiles in a third of -O3's time.
#ifndef __clang__
#pragma GCC optimize("O1")
#endif

namespace recurrent {
namespace {

// Computes what amx.cpp's tiles would, and ends the program where they would fault.
class EmulatedTiles {
 public:
  static void configure(std::size_t rows) {
    require(rows >= 1 && rows <= 16);
    rows_ = rows;
  }

  static void release() { rows_ = 0; }

  template <int PANELS>
  static void zero() {
    require(rows_ > 0);
    std::memset(sums_, 0, PANELS * sizeof sums_[0]);
  }

  static void load_rows(const Bfloat16* from, std::size_t stride_bytes) {
    require(rows_ > 0);
    for (std::size_t row = 0; row < rows_; ++row) {
      std::memcpy(a_[row], from + row * stride_bytes / sizeof(Bfloat16), sizeof a_[row]);
    }
  }

  template <int SUM>
  static void add_product(const Bfloat16* panel, std::size_t stride_bytes) {
    const std::size_t line = stride_bytes / sizeof(Bfloat16);
    for (std::size_t row = 0; row < rows_; ++row) {
      for (std::size_t pair = 0; pair < 16; ++pair) {
        for (std::size_t lane = 0; lane < 16; ++lane) {
          const Bfloat16* b = panel + pair * line + 2 * lane;
          sums_[SUM][row][lane] += value(a_[row][2 * pair]) * value(b[0]);
          sums_[SUM][row][lane] += value(a_[row][2 * pair + 1]) * value(b[1]);
        }
      }
    }
  }

  template <int PANELS>
  static void store(float* to, std::size_t stride_bytes) {
    for (int panel = 0; panel < PANELS; ++panel) {
      for (std::size_t row = 0; row < rows_; ++row) {
        std::memcpy(to + row * stride_bytes / sizeof(float) + panel * 16, sums_[panel][row],
                    sizeof sums_[panel][row]);
      }
    }
  }

 private:
  static void require(bool holds) {
    if (!holds) __builtin_trap();
  }

  static float value(Bfloat16 half) {
    const std::uint32_t bits = static_cast<std::uint32_t>(half.bits) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
  }

  static thread_local std::size_t rows_;
  static thread_local Bfloat16 a_[16][32];
  static thread_local float sums_[4][16][16];
};

thread_local std::size_t EmulatedTiles::rows_ = 0;
thread_local Bfloat16 EmulatedTiles::a_[16][32];
thread_local float EmulatedTiles::sums_[4][16][16];

#include "tiles.inc"

struct Traits {
  static constexpr bool kRegister = false;
  static constexpr int kLanes = 16, kForwardRows = 1, kBackwardRows = 1, kBackwardPanels = 4;
  using RoundedProduct = TileProduct<EmulatedTiles>;
};

#include "kernels.inc"

bool runs_here() { return multiplies_rightly<EmulatedTiles>(); }

}  // namespace

extern const InstructionSet k_emulated_amx = instruction_set("emulated_amx", runs_here);

}  // namespace recurrent
