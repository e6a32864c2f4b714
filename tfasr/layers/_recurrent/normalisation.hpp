// Batch normalisation of the frames that count, and dropout behind it, as one problem.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.hpp"

namespace recurrent {

// What is dropped: the activation i if the i-th half word of Philox's stream for this seed is below
// `dropped_levels`; all others are multiplied by `scale`. No level drops none and draws nothing.
struct Dropout {
  std::uint32_t dropped_levels = 0;
  float scale = 1;
  std::int32_t seed[2] = {0, 0};
};

// What both ways read. Arrays are contiguous; `Number`, float or Bfloat16, is what activations are
// rounded to, also between normalisation and dropout; all else is computed in float.
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
  const float* mean = nullptr;  // as found forwards
  const float* variance = nullptr;
  const Number* d_outputs = nullptr;
  Number* d_inputs = nullptr;
  float* d_gamma = nullptr;
  float* d_beta = nullptr;
};

}  // namespace recurrent
