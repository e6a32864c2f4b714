// What binding*.cpp share: conversions of NumPy arrays to views, and results as NumPy arrays.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "buffer.hpp"
#include "prepare.hpp"

namespace recurrent {

namespace py = pybind11;

template <class T>
using Array = py::array_t<T, py::array::c_style>;
using Floats = Array<float>;

// The type of the numbers in NumPy arrays; NumPy lacks bfloat16, so that is stored as uint16.
template <class Number>
using Stored = std::conditional_t<std::is_same_v<Number, Bfloat16>, std::uint16_t, Number>;

// Returns the instruction set that an argument names, or `chosen_set` if it is empty.
inline const InstructionSet& argument_set(const std::string& name) {
  return name.empty() ? chosen_set() : named(name, "instruction_set");
}

inline void expect_threads(int threads) {
  if (threads < 1) throw std::invalid_argument("threads must be at least 1.");
}

template <class Number, class T>
View<Number> view(const Array<T>& array) {
  static_assert(sizeof(Number) == sizeof(T));
  return {reinterpret_cast<const Number*>(array.data()),
          Shape(array.shape(), array.shape() + array.ndim())};
}

inline View<float> view(const Floats& array) { return view<float>(array); }

// The results of a call, in memory that later calls reuse.
class Results {
 public:
  explicit Results(int count) : arrays_(static_cast<std::size_t>(count)) {}

  template <class Number>
  Number* make(int index, const Shape& shape) {
    std::size_t size = sizeof(Number);
    for (const std::int64_t length : shape) size *= size_of(length);
    void* memory = allocate(size);
    arrays_[index] = Array<Stored<Number>>(shape, static_cast<Stored<Number>*>(memory),
                                           py::capsule(memory, release));
    return static_cast<Number*>(memory);
  }

  py::tuple tuple() const { return py::tuple(arrays_); }

 private:
  py::list arrays_;
};

// Add the functions of batch normalisation, and of the CTC loss, to the module.
void define_normalisation(py::module_& module);
void define_ctc(py::module_& module);

}  // namespace recurrent
