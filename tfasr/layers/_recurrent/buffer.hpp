// Memory that begins where a cache line does, as vectors and TensorFlow like it.
#pragma once

#include <cstddef>
#include <cstring>

namespace recurrent {

// Layers of one model ask for the same sizes in every step, and fresh pages cost as much as the
// arithmetic of a narrow layer: released memory is kept and given out again. What is in use and
// what is kept never exceed together what was once in use at one time. Any thread may call these.
void* allocate(std::size_t bytes);
void release(void* memory);

enum class Fill { kNothing, kZero };

template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t size, Fill fill)
      : data_(static_cast<T*>(allocate(size * sizeof(T)))) {
    if (fill == Fill::kZero) std::memset(static_cast<void*>(data_), 0, size * sizeof(T));
  }
  ~Buffer() { release(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T& operator[](std::size_t i) { return data_[i]; }

 private:
  T* data_;
};

}  // namespace recurrent
