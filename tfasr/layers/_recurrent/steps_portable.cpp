// The steps for any processor.
#include <algorithm>
#include <cstring>
#include <deque>
#include <type_traits>

#include "buffer.hpp"
#include "problem.hpp"
#include "team.hpp"

namespace recurrent {
namespace {

#define LANES 4
#define FORWARD_ROWS 2
#define BACKWARD_ROWS 4
#define BACKWARD_PANELS 2
#include "steps.inc"

bool runs_here() { return true; }

}  // namespace

extern const Steps k_portable{"portable", runs_here, forward_of<float>, forward_of<Bfloat16>,
                        backward_of<float>, backward_of<Bfloat16>,
                        normalise_forward<float>, normalise_forward<Bfloat16>,
                        normalise_backward<float>, normalise_backward<Bfloat16>};

}  // namespace recurrent
