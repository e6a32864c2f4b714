// Memory aligned to cache lines, as vector instructions and TensorFlow prefer it.
#pragma once

#include <cstddef>
#include <cstring>

namespace recurrent {

// Released memory is kept and reused, because the layers of a model ask for the same sizes in every
// step, and new pages take as long as the arithmetic of a narrow layer. Memory in use and memory
// kept together never exceed the most that was ever in use at once. Any thread may call these.
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
