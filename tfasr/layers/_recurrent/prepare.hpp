// Turns the arguments of a call from Python or TensorFlow into a problem for the kernels: checks
// shapes and allocates the outputs.
//
// `Outputs` is a class of the caller's. Its `make<T>(index, shape)` returns memory for output
// number `index`; T is float or Bfloat16.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "instruction_set.hpp"

namespace recurrent {

using Shape = std::vector<std::int64_t>;

template <class T>
struct View {
  const T* data = nullptr;
  Shape shape;
};

template <class T>
void expect(const View<T>& view, const Shape& shape, const char* name) {
  if (view.shape != shape) throw std::invalid_argument(std::string(name) + " has a wrong shape.");
}

inline std::size_t size_of(std::int64_t length) { return static_cast<std::size_t>(length); }

// What forward and backward pass both need; for the shapes see problem.hpp.
template <class Number>
struct RecurrenceArguments {
  View<Number> recurrent_kernel;
  View<float> h, c;          // before the first step; c is unused for a vanilla cell
  View<std::uint8_t> mask;   // its data is null if there is no mask
  float ceiling = 0;
};

template <class Number>
struct ForwardArguments : RecurrenceArguments<Number> {
  View<Number> projected;
  View<float> bias;
};

template <class Number>
struct BackwardArguments : RecurrenceArguments<Number> {
  View<float> gates, all_c, outputs;       // from the forward pass
  View<float> d_outputs, d_last_h, d_last_c;
};

struct Sizes {
  std::int64_t batch, time, units, width;
  Cell cell;
};

// Fills in what both passes read; `wide` is (batch, time, gates * units).
template <class Number>
Sizes fill(const RecurrenceArguments<Number>& arguments, const Shape& wide, const char* name,
           Recurrence<Number>& problem) {
  const Shape& kernel = arguments.recurrent_kernel.shape;
  if (wide.size() != 3 || kernel.size() != 2) {
    throw std::invalid_argument(
        std::string(name) +
        " must be (batch, time, gates * units), recurrent_kernel (units, gates * units).");
  }
  Sizes sizes{wide[0], wide[1], kernel[0], kernel[1], Cell::kLstm};
  const std::int64_t gates = sizes.units ? sizes.width / sizes.units : 0;
  if (gates != 1 && gates != 4) throw std::invalid_argument("There must be 1 or 4 gates.");
  if (gates == 1) sizes.cell = Cell::kVanilla;
  if (wide[2] != sizes.width) throw std::invalid_argument(std::string(name) + " has a wrong shape.");
  expect(arguments.recurrent_kernel, {sizes.units, gates * sizes.units}, "recurrent_kernel");
  expect(arguments.h, {sizes.batch, sizes.units}, "h");
  if (sizes.cell == Cell::kLstm) expect(arguments.c, {sizes.batch, sizes.units}, "c");
  if (arguments.mask.data) expect(arguments.mask, {sizes.batch, sizes.time}, "mask");
  problem.batch = size_of(sizes.batch);
  problem.time = size_of(sizes.time);
  problem.units = size_of(sizes.units);
  problem.recurrent_kernel = arguments.recurrent_kernel.data;
  problem.initial_h = arguments.h.data;
  problem.initial_c = arguments.c.data;
  problem.mask = arguments.mask.data;
  problem.ceiling = arguments.ceiling;
  return sizes;
}

template <class Problem>
struct Prepared {
  Cell cell;
  Problem problem;
};

// Outputs: gates, c and h of all steps; c is empty for a vanilla cell.
template <class Number, class Outputs>
Prepared<Forward<Number>> prepare(const ForwardArguments<Number>& arguments, Outputs& outputs) {
  Forward<Number> problem;
  const auto [batch, time, units, width, cell] =
      fill(arguments, arguments.projected.shape, "projected", problem);
  expect(arguments.bias, {width}, "bias");
  problem.projected = arguments.projected.data;
  problem.bias = arguments.bias.data;
  problem.gates = outputs.template make<float>(0, {batch, time, width});
  problem.c = outputs.template make<float>(1, {batch, cell == Cell::kLstm ? time : 0, units});
  problem.outputs = outputs.template make<float>(2, {batch, time, units});
  return {cell, problem};
}

// Outputs: the gradient of `projected`, h before each step, and the gradients of the bias and of h
// and c before the first step.
template <class Number, class Outputs>
Prepared<Backward<Number>> prepare(const BackwardArguments<Number>& arguments, Outputs& outputs) {
  Backward<Number> problem;
  const auto [batch, time, units, width, cell] =
      fill(arguments, arguments.gates.shape, "gates", problem);
  expect(arguments.outputs, {batch, time, units}, "outputs");
  expect(arguments.d_outputs, {batch, time, units}, "d_outputs");
  expect(arguments.d_last_h, {batch, units}, "d_h");
  const bool lstm = cell == Cell::kLstm;
  if (lstm) {
    expect(arguments.all_c, {batch, time, units}, "c");
    expect(arguments.d_last_c, {batch, units}, "d_c");
  }
  problem.gates = arguments.gates.data;
  problem.c = arguments.all_c.data;
  problem.outputs = arguments.outputs.data;
  problem.d_outputs = arguments.d_outputs.data;
  problem.dz = outputs.template make<Number>(0, {batch, time, width});
  problem.previous_h = outputs.template make<Number>(1, {batch, time, units});
  problem.d_bias = outputs.template make<float>(2, {width});
  problem.d_h = outputs.template make<float>(3, {batch, units});
  problem.d_c = outputs.template make<float>(4, {lstm ? batch : 0, units});
  std::fill_n(problem.d_bias, size_of(width), 0.0f);
  std::copy_n(arguments.d_last_h.data, size_of(batch * units), problem.d_h);
  if (lstm) std::copy_n(arguments.d_last_c.data, size_of(batch * units), problem.d_c);
  return {cell, problem};
}

inline void run(const InstructionSet& set, Cell cell, const Forward<float>& problem, int threads) {
  set.forward_float(cell, problem, threads);
}
inline void run(const InstructionSet& set, Cell cell, const Forward<Bfloat16>& problem,
                int threads) {
  set.forward_bfloat16(cell, problem, threads);
}
inline void run(const InstructionSet& set, Cell cell, const Backward<float>& problem, int threads) {
  set.backward_float(cell, problem, threads);
}
inline void run(const InstructionSet& set, Cell cell, const Backward<Bfloat16>& problem,
                int threads) {
  set.backward_bfloat16(cell, problem, threads);
}

template <class Problem>
void run(const InstructionSet& set, const Prepared<Problem>& prepared, int threads) {
  if (prepared.problem.batch && prepared.problem.time) {
    run(set, prepared.cell, prepared.problem, threads);
  }
}

}  // namespace recurrent
