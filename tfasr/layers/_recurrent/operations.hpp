// The interface of the kernels' operations in TensorFlow graphs.
#pragma once

#include <string>

namespace recurrent {

// Adds the operations to TensorFlow through its framework library, which must be loaded. Later
// calls do nothing. Throws std::runtime_error on failure.
void register_operations(const std::string& library);

// Limits the threads that a call of an operation may use, however many cores there are.
void limit_threads(int threads);

// Returns how many threads a call of an operation would use now if `replicas` share the cores.
int threads_of_a_call(int replicas);

}  // namespace recurrent
