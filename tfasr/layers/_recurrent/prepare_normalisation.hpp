// Like prepare.hpp, for batch normalisation with dropout.
#pragma once

#include "prepare.hpp"

namespace recurrent {

// What forward and backward pass both need. A row is one frame: all axes of `inputs` except the
// last are joined.
template <class Number>
struct NormalisationArguments {
  View<Number> inputs;
  View<float> gamma;
  View<std::uint8_t> mask;
  View<std::int32_t> seed;
  float epsilon = 0, scale = 1;
  std::int64_t dropped_levels = 0;
};

template <class Number>
struct NormaliseForwardArguments : NormalisationArguments<Number> {
  View<float> beta;
};

template <class Number>
struct NormaliseBackwardArguments : NormalisationArguments<Number> {
  View<float> mean, variance;
  View<Number> d_outputs;
};

// Fills in what both passes read; returns the number of channels.
template <class Number>
std::int64_t fill(const NormalisationArguments<Number>& arguments, Normalisation<Number>& problem) {
  const Shape& shape = arguments.inputs.shape;
  if (shape.size() < 2 || arguments.dropped_levels < 0 || arguments.dropped_levels >= 1 << 16) {
    throw std::invalid_argument(
        "inputs must be (..., rows, channels), dropped_levels in 0..65535.");
  }
  const std::int64_t channels = shape.back();
  expect(arguments.gamma, {channels}, "gamma");
  expect(arguments.mask, Shape(shape.begin(), shape.end() - 1), "mask");
  expect(arguments.seed, {2}, "seed");
  problem.rows = 1;
  for (auto length = shape.begin(); length != shape.end() - 1; ++length) {
    problem.rows *= size_of(*length);
  }
  problem.channels = size_of(channels);
  problem.inputs = arguments.inputs.data;
  problem.mask = arguments.mask.data;
  problem.gamma = arguments.gamma.data;
  problem.epsilon = arguments.epsilon;
  problem.dropout.dropped_levels = static_cast<std::uint32_t>(arguments.dropped_levels);
  problem.dropout.scale = arguments.scale;
  std::copy_n(arguments.seed.data, 2, problem.dropout.seed);
  return channels;
}

// Outputs: the normalised inputs, mean and variance.
template <class Number, class Outputs>
NormaliseForward<Number> prepare(const NormaliseForwardArguments<Number>& arguments,
                                 Outputs& outputs) {
  NormaliseForward<Number> problem;
  const std::int64_t channels = fill(arguments, problem);
  expect(arguments.beta, {channels}, "beta");
  problem.beta = arguments.beta.data;
  problem.outputs = outputs.template make<Number>(0, arguments.inputs.shape);
  problem.mean = outputs.template make<float>(1, {channels});
  problem.variance = outputs.template make<float>(2, {channels});
  return problem;
}

// Outputs: the gradients of inputs, gamma and beta.
template <class Number, class Outputs>
NormaliseBackward<Number> prepare(const NormaliseBackwardArguments<Number>& arguments,
                                  Outputs& outputs) {
  NormaliseBackward<Number> problem;
  const std::int64_t channels = fill(arguments, problem);
  expect(arguments.mean, {channels}, "mean");
  expect(arguments.variance, {channels}, "variance");
  expect(arguments.d_outputs, arguments.inputs.shape, "d_outputs");
  problem.mean = arguments.mean.data;
  problem.variance = arguments.variance.data;
  problem.d_outputs = arguments.d_outputs.data;
  problem.d_inputs = outputs.template make<Number>(0, arguments.inputs.shape);
  problem.d_gamma = outputs.template make<float>(1, {channels});
  problem.d_beta = outputs.template make<float>(2, {channels});
  return problem;
}

inline void run(const InstructionSet& set, const NormaliseForward<float>& problem, int threads) {
  set.normalise_float(problem, threads);
}
inline void run(const InstructionSet& set, const NormaliseForward<Bfloat16>& problem, int threads) {
  set.normalise_bfloat16(problem, threads);
}
inline void run(const InstructionSet& set, const NormaliseBackward<float>& problem, int threads) {
  set.normalise_back_float(problem, threads);
}
inline void run(const InstructionSet& set, const NormaliseBackward<Bfloat16>& problem,
                int threads) {
  set.normalise_back_bfloat16(problem, threads);
}

}  // namespace recurrent
