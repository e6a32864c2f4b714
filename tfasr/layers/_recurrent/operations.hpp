// The core's functions as operations of TensorFlow's graphs: what their users call.
#pragma once

#include <string>

namespace recurrent {

// Adds the operations to TensorFlow, once, through its loaded framework library. Throws
// std::runtime_error where that fails.
void register_operations(const std::string& library);

// Says how many threads a call of an operation may take at most, whatever cores there are.
void limit_threads(int threads);

// Returns how many threads a call of an operation takes now, if so many replicas share the cores.
int threads_of_a_call(int replicas);

}  // namespace recurrent
