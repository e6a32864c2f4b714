// Registers operations in TensorFlow, and decides how many threads a call uses.
#include "operations.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

#include "tensorflow_operation.hpp"

namespace recurrent {

TensorFlow tensorflow;

namespace {

std::atomic<int> most_threads{std::numeric_limits<int>::max()};

// The number of cores that this thread may run on.
int cores_here() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

void define(const Definition& definition) {
  TF_OpDefinitionBuilder* builder = tensorflow.TF_NewOpDefinitionBuilder(definition.name);
  for (const char* spec : definition.attributes) {
    tensorflow.TF_OpDefinitionBuilderAddAttr(builder, spec);
  }
  for (const char* spec : definition.inputs) {
    tensorflow.TF_OpDefinitionBuilderAddInput(builder, spec);
  }
  for (const char* spec : definition.outputs) {
    tensorflow.TF_OpDefinitionBuilderAddOutput(builder, spec);
  }
  tensorflow.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, definition.shapes);
  Status status;
  tensorflow.TF_RegisterOpDefinition(builder, status);
  status.expect_ok();
}

void register_operations(const std::string& library) {
  static const bool done = [&] {
    tensorflow = find_tensorflow(library.c_str());
    define_recurrence_operations();
    define_normalisation_operations();
    define_ctc_operation();
    return true;
  }();
  static_cast<void>(done);
}

void limit_threads(int threads) { most_threads.store(std::max(threads, 1)); }

int threads_of_a_call(int replicas) {
  return std::max(std::min(most_threads.load(), cores_here()) / std::max(replicas, 1), 1);
}

}  // namespace recurrent
