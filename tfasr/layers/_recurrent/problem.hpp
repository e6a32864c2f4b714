// The inputs and outputs of the recurrent layers, the same for every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace recurrent {

// The upper 16 bits of a float. Arithmetic is done in float.
struct Bfloat16 {
  std::uint16_t bits;
};

// An LSTM has 4 gates in Keras's order, a vanilla cell has one; see cells.inc.
enum class Cell { kLstm, kVanilla };

// What forward and backward pass both read. All arrays are batch-major and contiguous: (batch,
// time, columns), (batch, units). `Number` is the type of a matmul's factors, float or Bfloat16;
// states, gates and sums are floats.
template <class Number>
struct Recurrence {
  std::size_t batch = 0, time = 0, units = 0;
  const Number* recurrent_kernel = nullptr;  // (units, gates * units)
  const float* initial_h = nullptr;          // (batch, units)
  const float* initial_c = nullptr;          // (batch, units); null for a vanilla cell
  const std::uint8_t* mask = nullptr;  // (batch, time), or null; states don't change where it is 0
  float ceiling = std::numeric_limits<float>::infinity();  // the vanilla cell's largest output
};

template <class Number>
struct Forward : Recurrence<Number> {
  const Number* projected = nullptr;  // (batch, time, gates * units): inputs times their weights
  const float* bias = nullptr;        // (gates * units)
  float* gates = nullptr;             // (batch, time, gates * units), with activations applied
  float* c = nullptr;                 // (batch, time, units)
  float* outputs = nullptr;           // (batch, time, units): h
};

template <class Number>
struct Backward : Recurrence<Number> {
  const float* gates = nullptr;
  const float* c = nullptr;
  const float* outputs = nullptr;
  const float* d_outputs = nullptr;  // (batch, time, units)
  float* d_h = nullptr;              // (batch, units): in: of the last h; out: of the initial h
  float* d_c = nullptr;
  Number* dz = nullptr;          // (batch, time, gates * units): the gradient of `projected`
  Number* previous_h = nullptr;  // (batch, time, units): h before each step
  float* d_bias = nullptr;       // (gates * units)
};

}  // namespace recurrent
