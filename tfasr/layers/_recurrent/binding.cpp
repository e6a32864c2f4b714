// The Python module of the kernels. Only binding*.cpp and arrays.hpp depend on Python.
#include <limits>
#include <optional>

#include "arrays.hpp"
#include "operations.hpp"

namespace recurrent {
namespace {

using Mask = std::optional<Array<bool>>;

View<std::uint8_t> view_of(const Mask& mask) {
  return mask ? view<std::uint8_t>(*mask) : View<std::uint8_t>{};
}

template <class Number, class T = Stored<Number>>
py::tuple forward(const Array<T>& projected, const Floats& bias, const Array<T>& recurrent_kernel,
                  const Floats& h, const Floats& c, const Mask& mask, int threads,
                  const std::string& instruction_set, float ceiling) {
  expect_threads(threads);
  ForwardArguments<Number> arguments;
  arguments.recurrent_kernel = view<Number>(recurrent_kernel);
  arguments.h = view(h);
  arguments.c = view(c);
  arguments.mask = view_of(mask);
  arguments.ceiling = ceiling;
  arguments.projected = view<Number>(projected);
  arguments.bias = view(bias);
  Results results(3);
  const auto prepared = prepare(arguments, results);
  const InstructionSet& set = argument_set(instruction_set);
  {
    const py::gil_scoped_release released;
    run(set, prepared, threads);
  }
  return results.tuple();
}

template <class Number, class T = Stored<Number>>
py::tuple backward(const Floats& gates, const Floats& c, const Floats& outputs,
                   const Array<T>& recurrent_kernel, const Floats& initial_h,
                   const Floats& initial_c, const Mask& mask, const Floats& d_outputs,
                   const Floats& d_last_h, const Floats& d_last_c, int threads,
                   const std::string& instruction_set, float ceiling) {
  expect_threads(threads);
  BackwardArguments<Number> arguments;
  arguments.recurrent_kernel = view<Number>(recurrent_kernel);
  arguments.h = view(initial_h);
  arguments.c = view(initial_c);
  arguments.mask = view_of(mask);
  arguments.ceiling = ceiling;
  arguments.gates = view(gates);
  arguments.all_c = view(c);
  arguments.outputs = view(outputs);
  arguments.d_outputs = view(d_outputs);
  arguments.d_last_h = view(d_last_h);
  arguments.d_last_c = view(d_last_c);
  Results results(5);
  const auto prepared = prepare(arguments, results);
  const InstructionSet& set = argument_set(instruction_set);
  {
    const py::gil_scoped_release released;
    run(set, prepared, threads);
  }
  return results.tuple();
}

}  // namespace

PYBIND11_MODULE(_recurrent_core, module) {
  module.doc() = "The compiled core of tfasr.layers.recurrent.recurrent_kernel.";
  const float no_ceiling = std::numeric_limits<float>::infinity();
  module.def("instruction_sets", [] {
    py::list names;
    for (const InstructionSet* set : instruction_sets_here()) names.append(set->name);
    return names;
  });
  module.def("chosen_instruction_set", [] { return chosen_set().name; },
             "Returns the default instruction set.");
  const auto define = [&](const char* name, auto function) {
    module.def(name, function, py::arg("projected").noconvert(), py::arg("bias"),
               py::arg("recurrent_kernel").noconvert(), py::arg("h"), py::arg("c"),
               py::arg("mask").none(true), py::arg("threads"), py::arg("instruction_set") = "",
               py::arg("ceiling") = no_ceiling);
  };
  define("forward_float32", forward<float>);
  define("forward_bfloat16", forward<Bfloat16>);
  const auto define_backward = [&](const char* name, auto function) {
    module.def(name, function, py::arg("gates"), py::arg("c"), py::arg("outputs"),
               py::arg("recurrent_kernel").noconvert(), py::arg("h"), py::arg("c0"),
               py::arg("mask").none(true), py::arg("d_outputs"), py::arg("d_h"), py::arg("d_c"),
               py::arg("threads"), py::arg("instruction_set") = "",
               py::arg("ceiling") = no_ceiling);
  };
  define_backward("backward_float32", backward<float>);
  define_backward("backward_bfloat16", backward<Bfloat16>);
  define_normalisation(module);
  define_ctc(module);
  module.def("register_operations", register_operations, py::arg("library"),
             "Adds the operations to TensorFlow, whose loaded framework library lies there.");
  module.def("limit_threads", limit_threads, py::arg("threads"),
             "Says how many threads a call of an operation may take at most.");
  module.def("operation_threads", threads_of_a_call, py::arg("replicas"),
             "Returns how many threads a call of an operation takes now.");
}

}  // namespace recurrent
