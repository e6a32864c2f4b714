// The Python face of the set; the only file that knows Python.
#include <algorithm>
#include <limits>
#include <optional>

#include "arrays.hpp"

namespace recurrent {
namespace {

using Mask = std::optional<Array<bool>>;

Cell cell_of(py::ssize_t gates) {
  if (gates != 1 && gates != 4) throw std::invalid_argument("There must be 1 or 4 gates.");
  return gates == 4 ? Cell::kLstm : Cell::kVanilla;
}

const std::uint8_t* mask_of(const Mask& mask, py::ssize_t batch, py::ssize_t time) {
  if (!mask) return nullptr;
  expect(*mask, {batch, time}, "mask");
  return reinterpret_cast<const std::uint8_t*>(mask->data());
}

void run(const InstructionSet& set, Cell cell, const Forward<float>& problem, int threads) {
  set.forward_float(cell, problem, threads);
}
void run(const InstructionSet& set, Cell cell, const Forward<Bfloat16>& problem, int threads) {
  set.forward_bfloat16(cell, problem, threads);
}
void run(const InstructionSet& set, Cell cell, const Backward<float>& problem, int threads) {
  set.backward_float(cell, problem, threads);
}
void run(const InstructionSet& set, Cell cell, const Backward<Bfloat16>& problem, int threads) {
  set.backward_bfloat16(cell, problem, threads);
}

template <class Stored, class Number>
py::tuple forward(const Array<Stored>& projected, const Floats& bias,
                  const Array<Stored>& recurrent_kernel, const Floats& h,
                  const Floats& c, const Mask& mask, int threads,
                  const std::string& instruction_set, float ceiling) {
  if (projected.ndim() != 3 || recurrent_kernel.ndim() != 2 || threads < 1) {
    throw std::invalid_argument(
        "projected must be (batch, time, gates * units), threads at least 1.");
  }
  const py::ssize_t batch = projected.shape(0), time = projected.shape(1);
  const py::ssize_t units = recurrent_kernel.shape(0), width = recurrent_kernel.shape(1);
  const Cell cell = cell_of(units ? width / units : 0);
  const py::ssize_t gates = cell == Cell::kLstm ? 4 : 1;
  expect(projected, {batch, time, width}, "projected");
  expect(recurrent_kernel, {units, gates * units}, "recurrent_kernel");
  expect(bias, {width}, "bias");
  expect(h, {batch, units}, "h");
  if (cell == Cell::kLstm) expect(c, {batch, units}, "c");
  auto all_gates = make<float>({batch, time, width});
  auto all_c = make<float>({batch, cell == Cell::kLstm ? time : 0, units});
  auto outputs = make<float>({batch, time, units});
  Forward<Number> problem;
  problem.batch = size_of(batch);
  problem.time = size_of(time);
  problem.units = size_of(units);
  problem.recurrent_kernel = reinterpret_cast<const Number*>(recurrent_kernel.data());
  problem.initial_h = h.data();
  problem.initial_c = c.data();
  problem.mask = mask_of(mask, batch, time);
  problem.ceiling = ceiling;
  problem.projected = reinterpret_cast<const Number*>(projected.data());
  problem.bias = bias.data();
  problem.gates = all_gates.mutable_data();
  problem.c = all_c.mutable_data();
  problem.outputs = outputs.mutable_data();
  const InstructionSet& set = named(instruction_set);
  if (batch && time) {
    const py::gil_scoped_release release;
    run(set, cell, problem, threads);
  }
  return py::make_tuple(all_gates, all_c, outputs);
}

template <class Stored, class Number>
py::tuple backward(const Floats& gates, const Floats& c, const Floats& outputs,
                   const Array<Stored>& recurrent_kernel,
                   const Floats& initial_h, const Floats& initial_c, const Mask& mask,
                   const Floats& d_outputs,
                   const Floats& d_last_h, const Floats& d_last_c, int threads,
                   const std::string& instruction_set, float ceiling) {
  if (gates.ndim() != 3 || recurrent_kernel.ndim() != 2 || threads < 1) {
    throw std::invalid_argument("gates must be (batch, time, gates * units), threads at least 1.");
  }
  const py::ssize_t batch = gates.shape(0), time = gates.shape(1);
  const py::ssize_t units = recurrent_kernel.shape(0), width = recurrent_kernel.shape(1);
  const Cell cell = cell_of(units ? width / units : 0);
  expect(gates, {batch, time, width}, "gates");
  expect(outputs, {batch, time, units}, "outputs");
  expect(d_outputs, {batch, time, units}, "d_outputs");
  expect(initial_h, {batch, units}, "initial_h");
  expect(d_last_h, {batch, units}, "d_last_h");
  if (cell == Cell::kLstm) {
    expect(c, {batch, time, units}, "c");
    expect(initial_c, {batch, units}, "initial_c");
    expect(d_last_c, {batch, units}, "d_last_c");
  }
  auto d_h = make<float>({batch, units});
  auto d_c = make<float>({d_last_c.size() ? batch : 0, units});
  auto dz = make<Stored>({batch, time, width});
  auto previous_h = make<Stored>({batch, time, units});
  auto d_bias = make<float>({width});
  std::copy_n(d_last_h.data(), d_last_h.size(), d_h.mutable_data());
  std::copy_n(d_last_c.data(), d_c.size(), d_c.mutable_data());
  std::fill_n(d_bias.mutable_data(), d_bias.size(), 0.0f);
  Backward<Number> problem;
  problem.batch = size_of(batch);
  problem.time = size_of(time);
  problem.units = size_of(units);
  problem.recurrent_kernel = reinterpret_cast<const Number*>(recurrent_kernel.data());
  problem.initial_h = initial_h.data();
  problem.initial_c = initial_c.data();
  problem.mask = mask_of(mask, batch, time);
  problem.ceiling = ceiling;
  problem.gates = gates.data();
  problem.c = c.data();
  problem.outputs = outputs.data();
  problem.d_outputs = d_outputs.data();
  problem.d_h = d_h.mutable_data();
  problem.d_c = d_c.mutable_data();
  problem.dz = reinterpret_cast<Number*>(dz.mutable_data());
  problem.previous_h = reinterpret_cast<Number*>(previous_h.mutable_data());
  problem.d_bias = d_bias.mutable_data();
  const InstructionSet& set = named(instruction_set);
  if (batch && time) {
    const py::gil_scoped_release release;
    run(set, cell, problem, threads);
  }
  return py::make_tuple(dz, previous_h, d_bias, d_h, d_c);
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
  const auto define = [&](const char* name, auto function) {
    module.def(name, function, py::arg("projected").noconvert(), py::arg("bias"),
               py::arg("recurrent_kernel").noconvert(), py::arg("h"), py::arg("c"),
               py::arg("mask").none(true), py::arg("threads"), py::arg("instruction_set") = "",
               py::arg("ceiling") = no_ceiling);
  };
  define("forward_float32", forward<float, float>);
  define("forward_bfloat16", forward<std::uint16_t, Bfloat16>);
  const auto define_backward = [&](const char* name, auto function) {
    module.def(name, function, py::arg("gates"), py::arg("c"), py::arg("outputs"),
               py::arg("recurrent_kernel").noconvert(), py::arg("h"), py::arg("c0"),
               py::arg("mask").none(true), py::arg("d_outputs"), py::arg("d_h"), py::arg("d_c"),
               py::arg("threads"), py::arg("instruction_set") = "",
               py::arg("ceiling") = no_ceiling);
  };
  define_backward("backward_float32", backward<float, float>);
  define_backward("backward_bfloat16", backward<std::uint16_t, Bfloat16>);
  define_normalisation(module);
}

}  // namespace recurrent
