// Batch normalisation with dropout, for Python.
#include "arrays.hpp"
#include "prepare_normalisation.hpp"

namespace recurrent {
namespace {

using Seed = Array<std::int32_t>;

template <class Number, class T = Stored<Number>>
void fill(NormalisationArguments<Number>& arguments, const Array<T>& inputs, const Floats& gamma,
          const Array<bool>& mask, const Seed& seed) {
  arguments.inputs = view<Number>(inputs);
  arguments.gamma = view(gamma);
  arguments.mask = view<std::uint8_t>(mask);
  arguments.seed = view<std::int32_t>(seed);
}

template <class Number, class T = Stored<Number>>
py::tuple forward(const Array<T>& inputs, const Floats& gamma, const Floats& beta,
                  const Array<bool>& mask, float epsilon, const Seed& seed, int dropped_levels,
                  float scale, int threads, const std::string& instruction_set) {
  expect_threads(threads);
  NormaliseForwardArguments<Number> arguments;
  fill(arguments, inputs, gamma, mask, seed);
  arguments.epsilon = epsilon;
  arguments.dropped_levels = dropped_levels;
  arguments.scale = scale;
  arguments.beta = view(beta);
  Results results(3);
  const auto problem = prepare(arguments, results);
  const InstructionSet& set = argument_set(instruction_set);
  {
    const py::gil_scoped_release released;
    run(set, problem, threads);
  }
  return results.tuple();
}

template <class Number, class T = Stored<Number>>
py::tuple backward(const Array<T>& inputs, const Floats& gamma, const Floats& mean,
                   const Floats& variance, const Array<T>& d_outputs, const Array<bool>& mask,
                   float epsilon, const Seed& seed, int dropped_levels, float scale, int threads,
                   const std::string& instruction_set) {
  expect_threads(threads);
  NormaliseBackwardArguments<Number> arguments;
  fill(arguments, inputs, gamma, mask, seed);
  arguments.epsilon = epsilon;
  arguments.dropped_levels = dropped_levels;
  arguments.scale = scale;
  arguments.mean = view(mean);
  arguments.variance = view(variance);
  arguments.d_outputs = view<Number>(d_outputs);
  Results results(3);
  const auto problem = prepare(arguments, results);
  const InstructionSet& set = argument_set(instruction_set);
  {
    const py::gil_scoped_release released;
    run(set, problem, threads);
  }
  return results.tuple();
}

}  // namespace

void define_normalisation(py::module_& module) {
  const auto define = [&](const char* name, auto function) {
    module.def(name, function, py::arg("inputs").noconvert(), py::arg("gamma"), py::arg("beta"),
               py::arg("mask"), py::arg("epsilon"), py::arg("seed"), py::arg("dropped_levels"),
               py::arg("scale"), py::arg("threads"), py::arg("instruction_set") = "");
  };
  define("normalise_float32", forward<float>);
  define("normalise_bfloat16", forward<Bfloat16>);
  const auto define_backward = [&](const char* name, auto function) {
    module.def(name, function, py::arg("inputs").noconvert(), py::arg("gamma"), py::arg("mean"),
               py::arg("variance"), py::arg("d_outputs").noconvert(), py::arg("mask"),
               py::arg("epsilon"), py::arg("seed"), py::arg("dropped_levels"), py::arg("scale"),
               py::arg("threads"), py::arg("instruction_set") = "");
  };
  define_backward("normalise_back_float32", backward<float>);
  define_backward("normalise_back_bfloat16", backward<Bfloat16>);
}

}  // namespace recurrent
