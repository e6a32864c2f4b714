// The inputs and outputs of masked batch normalisation and the dropout after it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.hpp"

namespace recurrent {

// Activation i is dropped if the i-th 16-bit half word of Philox's stream for this seed is below
// `dropped_levels`; all others are multiplied by `scale`. If it is 0, no bits are drawn.
struct Dropout {
  std::uint32_t dropped_levels = 0;
  float scale = 1;
  std::int32_t seed[2] = {0, 0};
};

// What forward and backward pass both read. Arrays are contiguous. Activations are rounded to
// `Number`, float or Bfloat16, also between normalisation and dropout; all else is float.
template <class Number>
struct Normalisation {
  std::size_t rows = 0, channels = 0;
  const Number* inputs = nullptr;      // (rows, channels)
  const std::uint8_t* mask = nullptr;  // (rows): 0 leaves a row out of mean and variance
  const float* gamma = nullptr;        // (channels)
  float epsilon = 0;
  Dropout dropout;
};

template <class Number>
struct NormaliseForward : Normalisation<Number> {
  const float* beta = nullptr;  // (channels)
  Number* outputs = nullptr;    // (rows, channels)
  float* mean = nullptr;        // (channels)
  float* variance = nullptr;
};

template <class Number>
struct NormaliseBackward : Normalisation<Number> {
  const float* mean = nullptr;  // from the forward pass
  const float* variance = nullptr;
  const Number* d_outputs = nullptr;
  Number* d_inputs = nullptr;
  float* d_gamma = nullptr;
  float* d_beta = nullptr;
};

}  // namespace recurrent
