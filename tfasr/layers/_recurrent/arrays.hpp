// What the Python faces have in common: arrays with memory of their own, and what is expected.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "buffer.hpp"
#include "instruction_set.hpp"

namespace recurrent {

namespace py = pybind11;

constexpr auto kContiguous = py::array::c_style;
template <class T>
using Array = py::array_t<T, kContiguous>;
using Floats = Array<float>;

// The instruction set of a name, or this processor's best for none.
inline const InstructionSet& named(const std::string& name) {
  for (const InstructionSet* set : instruction_sets_here()) {
    if (name.empty() || name == set->name) return *set;
  }
  throw std::invalid_argument("instruction_set must be one of this processor's. Received: " + name);
}

template <class T>
Array<T> make(std::vector<py::ssize_t> shape) {
  std::size_t size = sizeof(T);
  for (const py::ssize_t length : shape) size *= static_cast<std::size_t>(length);
  void* memory = allocate(size);
  return Array<T>(shape, static_cast<T*>(memory), py::capsule(memory, release));
}

template <class T>
void expect(const Array<T>& array, std::vector<py::ssize_t> shape, const char* name) {
  const std::vector<py::ssize_t> received(array.shape(), array.shape() + array.ndim());
  if (received != shape) throw std::invalid_argument(std::string(name) + " has a wrong shape.");
}

inline std::size_t size_of(py::ssize_t value) { return static_cast<std::size_t>(value); }

// Adds the functions of batch normalisation to the module.
void define_normalisation(py::module_& module);

}  // namespace recurrent
