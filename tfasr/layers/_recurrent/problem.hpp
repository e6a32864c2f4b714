// What the steps of a recurrent layer read and write, the same for every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "normalisation.hpp"

namespace recurrent {

// The upper half of a float; arithmetic happens in float.
struct Bfloat16 {
  std::uint16_t bits;
};

// All arrays are batch-major and contiguous: (batch, time, columns), (batch, units). `Number` is
// the type that is multiplied: float or Bfloat16; states, gates and sums are floats. A problem has
// one kind of cell: an LSTM with 4 gates in Keras's order, or a vanilla cell with 1 (cells.inc).
template <class Number>
struct Forward {
  std::size_t batch, time, units;
  const Number* projected;         // (batch, time, gates * units): the inputs times their weights
  const float* bias;               // (gates * units)
  const Number* recurrent_kernel;  // (units, gates * units)
  const float* initial_h;          // (batch, units)
  const float* initial_c;          // (batch, units); a vanilla cell has none
  const std::uint8_t* mask;        // (batch, time), or null: 0 leaves the states as they are
  float* gates;                    // (batch, time, gates * units): after their activations
  float* c;                        // (batch, time, units)
  float* outputs;                  // (batch, time, units): h
  float ceiling;                   // what the vanilla cell's ReLU is clipped at
};

template <class Number>
struct Backward {
  std::size_t batch, time, units;
  const float* gates;
  const float* c;
  const float* outputs;
  const Number* recurrent_kernel;
  const float* initial_h;
  const float* initial_c;
  const std::uint8_t* mask;
  const float* d_outputs;  // (batch, time, units)
  float* d_h;              // (batch, units): of the last h before, of the first one after
  float* d_c;
  Number* dz;          // (batch, time, gates * units): the gradient of `projected`
  Number* previous_h;  // (batch, time, units): what entered each step
  float* d_bias;       // (gates * units)
  float ceiling;
};

enum class Cell { kLstm, kVanilla };

// What one instruction set offers. Each source steps_*.cpp fills one in.
struct Steps {
  const char* name;
  bool (*runs_here)();
  void (*forward_float)(Cell, const Forward<float>&, int threads);
  void (*forward_bfloat16)(Cell, const Forward<Bfloat16>&, int threads);
  void (*backward_float)(Cell, const Backward<float>&, int threads);
  void (*backward_bfloat16)(Cell, const Backward<Bfloat16>&, int threads);
  void (*normalise_float)(const NormaliseForward<float>&, int threads);
  void (*normalise_bfloat16)(const NormaliseForward<Bfloat16>&, int threads);
  void (*normalise_back_float)(const NormaliseBackward<float>&, int threads);
  void (*normalise_back_bfloat16)(const NormaliseBackward<Bfloat16>&, int threads);
};

}  // namespace recurrent
