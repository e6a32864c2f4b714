// What the recurrent layers read and write, the same for every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace recurrent {

// The upper half of a float; arithmetic happens in float.
struct Bfloat16 {
  std::uint16_t bits;
};

// An LSTM has 4 gates in Keras's order, a vanilla cell one: see cells.inc.
enum class Cell { kLstm, kVanilla };

// What both ways read. All arrays are batch-major and contiguous: (batch, time, columns), (batch,
// units). `Number` is the type that is multiplied, float or Bfloat16; states, gates and sums are
// floats.
template <class Number>
struct Recurrence {
  std::size_t batch = 0, time = 0, units = 0;
  const Number* recurrent_kernel = nullptr;  // (units, gates * units)
  const float* initial_h = nullptr;          // (batch, units)
  const float* initial_c = nullptr;          // (batch, units); null for a vanilla cell
  const std::uint8_t* mask = nullptr;  // (batch, time), or null: 0 leaves the states as they are
  float ceiling = std::numeric_limits<float>::infinity();  // where the vanilla cell's ReLU is cut
};

template <class Number>
struct Forward : Recurrence<Number> {
  const Number* projected = nullptr;  // (batch, time, gates * units): inputs times their weights
  const float* bias = nullptr;        // (gates * units)
  float* gates = nullptr;             // (batch, time, gates * units): after their activations
  float* c = nullptr;                 // (batch, time, units)
  float* outputs = nullptr;           // (batch, time, units): h
};

template <class Number>
struct Backward : Recurrence<Number> {
  const float* gates = nullptr;
  const float* c = nullptr;
  const float* outputs = nullptr;
  const float* d_outputs = nullptr;  // (batch, time, units)
  float* d_h = nullptr;              // (batch, units): of the last h before, of the first one after
  float* d_c = nullptr;
  Number* dz = nullptr;          // (batch, time, gates * units): the gradient of `projected`
  Number* previous_h = nullptr;  // (batch, time, units): what entered each step
  float* d_bias = nullptr;       // (gates * units)
};

}  // namespace recurrent
