// The Python face of batch normalisation with dropout.
#include <algorithm>

#include "arrays.hpp"

namespace recurrent {
namespace {

using Mask = Array<bool>;

void run(const InstructionSet& set, const NormaliseForward<float>& problem, int threads) {
  set.normalise_float(problem, threads);
}
void run(const InstructionSet& set, const NormaliseForward<Bfloat16>& problem, int threads) {
  set.normalise_bfloat16(problem, threads);
}
void run(const InstructionSet& set, const NormaliseBackward<float>& problem, int threads) {
  set.normalise_back_float(problem, threads);
}
void run(const InstructionSet& set, const NormaliseBackward<Bfloat16>& problem, int threads) {
  set.normalise_back_bfloat16(problem, threads);
}

template <class Stored, class Problem>
void fill(Problem& problem, const Array<Stored>& inputs, const Floats& gamma, const Mask& mask,
          float epsilon, const Array<std::int32_t>& seed, int dropped_levels, float scale,
          int threads) {
  if (inputs.ndim() != 2 || threads < 1 || dropped_levels < 0 || dropped_levels >= 1 << 16) {
    throw std::invalid_argument(
        "inputs must be (rows, channels), threads at least 1, dropped_levels in 0..65535.");
  }
  expect(gamma, {inputs.shape(1)}, "gamma");
  expect(mask, {inputs.shape(0)}, "mask");
  expect(seed, {2}, "seed");
  problem.rows = size_of(inputs.shape(0));
  problem.channels = size_of(inputs.shape(1));
  problem.inputs = reinterpret_cast<decltype(problem.inputs)>(inputs.data());
  problem.mask = reinterpret_cast<const std::uint8_t*>(mask.data());
  problem.gamma = gamma.data();
  problem.epsilon = epsilon;
  problem.dropout.dropped_levels = static_cast<std::uint32_t>(dropped_levels);
  problem.dropout.scale = scale;
  std::copy_n(seed.data(), 2, problem.dropout.seed);
}

template <class Stored, class Number>
py::tuple forward(const Array<Stored>& inputs, const Floats& gamma, const Floats& beta,
                  const Mask& mask, float epsilon, const Array<std::int32_t>& seed,
                  int dropped_levels, float scale, int threads,
                  const std::string& instruction_set) {
  NormaliseForward<Number> problem;
  fill(problem, inputs, gamma, mask, epsilon, seed, dropped_levels, scale, threads);
  expect(beta, {inputs.shape(1)}, "beta");
  auto outputs = make<Stored>({inputs.shape(0), inputs.shape(1)});
  auto mean = make<float>({inputs.shape(1)}), variance = make<float>({inputs.shape(1)});
  problem.beta = beta.data();
  problem.outputs = reinterpret_cast<Number*>(outputs.mutable_data());
  problem.mean = mean.mutable_data();
  problem.variance = variance.mutable_data();
  const InstructionSet& set = named(instruction_set);
  {
    const py::gil_scoped_release release;
    run(set, problem, threads);
  }
  return py::make_tuple(outputs, mean, variance);
}

template <class Stored, class Number>
py::tuple backward(const Array<Stored>& inputs, const Floats& gamma, const Floats& mean,
                   const Floats& variance, const Array<Stored>& d_outputs, const Mask& mask,
                   float epsilon, const Array<std::int32_t>& seed, int dropped_levels, float scale,
                   int threads, const std::string& instruction_set) {
  NormaliseBackward<Number> problem;
  fill(problem, inputs, gamma, mask, epsilon, seed, dropped_levels, scale, threads);
  expect(d_outputs, {inputs.shape(0), inputs.shape(1)}, "d_outputs");
  expect(mean, {inputs.shape(1)}, "mean");
  expect(variance, {inputs.shape(1)}, "variance");
  auto d_inputs = make<Stored>({inputs.shape(0), inputs.shape(1)});
  auto d_gamma = make<float>({inputs.shape(1)}), d_beta = make<float>({inputs.shape(1)});
  problem.mean = mean.data();
  problem.variance = variance.data();
  problem.d_outputs = reinterpret_cast<const Number*>(d_outputs.data());
  problem.d_inputs = reinterpret_cast<Number*>(d_inputs.mutable_data());
  problem.d_gamma = d_gamma.mutable_data();
  problem.d_beta = d_beta.mutable_data();
  const InstructionSet& set = named(instruction_set);
  {
    const py::gil_scoped_release release;
    run(set, problem, threads);
  }
  return py::make_tuple(d_inputs, d_gamma, d_beta);
}

}  // namespace

void define_normalisation(py::module_& module) {
  const auto define = [&](const char* name, auto function) {
    module.def(name, function, py::arg("inputs").noconvert(), py::arg("gamma"), py::arg("beta"),
               py::arg("mask"), py::arg("epsilon"), py::arg("seed"), py::arg("dropped_levels"),
               py::arg("scale"), py::arg("threads"), py::arg("instruction_set") = "");
  };
  define("normalise_float32", forward<float, float>);
  define("normalise_bfloat16", forward<std::uint16_t, Bfloat16>);
  const auto define_backward = [&](const char* name, auto function) {
    module.def(name, function, py::arg("inputs").noconvert(), py::arg("gamma"), py::arg("mean"),
               py::arg("variance"), py::arg("d_outputs").noconvert(), py::arg("mask"),
               py::arg("epsilon"), py::arg("seed"), py::arg("dropped_levels"), py::arg("scale"),
               py::arg("threads"), py::arg("instruction_set") = "");
  };
  define_backward("normalise_back_float32", backward<float, float>);
  define_backward("normalise_back_bfloat16", backward<std::uint16_t, Bfloat16>);
}

}  // namespace recurrent
