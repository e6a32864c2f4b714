// Memory that begins where a cache line does, as vectors and TensorFlow like it.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>

namespace recurrent {

constexpr std::align_val_t kAlignment{64};

inline void* allocate(std::size_t bytes) { return ::operator new(bytes ? bytes : 1, kAlignment); }
inline void release(void* memory) { ::operator delete(memory, kAlignment); }

// Numbers, zero at first.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t size) : data_(static_cast<T*>(allocate(size * sizeof(T)))) {
    std::memset(static_cast<void*>(data_), 0, size * sizeof(T));
  }
  ~Buffer() { release(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T& operator[](std::size_t i) { return data_[i]; }

 private:
  T* data_;
};

}  // namespace recurrent
