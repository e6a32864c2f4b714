// The kernels for any processor.
#include "kernels.hpp"

namespace recurrent {
namespace {

struct Traits {
  static constexpr bool kRegister = false;
  static constexpr int kLanes = 4, kForwardRows = 2, kBackwardRows = 4, kBackwardPanels = 2;
  using RoundedProduct = void;
};

#include "kernels.inc"

bool runs_here() { return true; }

}  // namespace

extern const InstructionSet k_portable = instruction_set("portable", runs_here);

}  // namespace recurrent
