// The CTC loss with its gradient, for Python.
#include "arrays.hpp"
#include "prepare_ctc.hpp"

namespace recurrent {
namespace {

using Integers = Array<std::int32_t>;

py::tuple ctc(const Floats& logits, const Integers& lengths, const Integers& labels,
              const Integers& label_lengths, int threads, const std::string& instruction_set) {
  expect_threads(threads);
  const CtcArguments arguments{view(logits), view<std::int32_t>(lengths),
                               view<std::int32_t>(labels), view<std::int32_t>(label_lengths)};
  Results results(2);
  const Ctc problem = prepare(arguments, results);
  const InstructionSet& set = argument_set(instruction_set);
  {
    const py::gil_scoped_release released;
    set.ctc(problem, threads);
  }
  return results.tuple();
}

}  // namespace

void define_ctc(py::module_& module) {
  module.def("ctc", ctc, py::arg("logits"), py::arg("logit_lengths"), py::arg("labels"),
             py::arg("label_lengths"), py::arg("threads"), py::arg("instruction_set") = "",
             "Returns the losses and the gradient of each one's logits.");
}

}  // namespace recurrent
