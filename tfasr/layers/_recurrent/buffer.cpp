#include "buffer.hpp"

#include <algorithm>
#include <deque>
#include <mutex>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace recurrent {
namespace {

// Stored in the cache line before each block, so that the block itself starts at a cache line.
struct Header {
  std::size_t bytes;
};
constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t alignment_of(std::size_t bytes) { return bytes < kHugePage ? kLine : kHugePage; }

void* fresh(std::size_t bytes) {
  const std::size_t whole = bytes + kLine;
  char* memory =
      static_cast<char*>(::operator new(whole, std::align_val_t{alignment_of(whole)}));
#ifdef __linux__
  // If the system doesn't follow this advice, pages are small, which is only slower.
  if (whole >= kHugePage) madvise(memory, whole, MADV_HUGEPAGE);
#endif
  new (memory) Header{bytes};
  return memory + kLine;
}

Header& header(void* memory) {
  return *reinterpret_cast<Header*>(static_cast<char*>(memory) - kLine);
}

void give_back(void* memory) {
  const std::size_t whole = header(memory).bytes + kLine;
  ::operator delete(static_cast<char*>(memory) - kLine, std::align_val_t{alignment_of(whole)});
}

class Pool {
 public:
  void* take(std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto fits = [&](void* memory) {
      const std::size_t size = header(memory).bytes;
      return size >= bytes && size <= bytes + bytes / 4 + kLine;
    };
    void* memory = nullptr;
    const auto found = std::find_if(kept_.begin(), kept_.end(), fits);
    if (found != kept_.end()) {
      memory = *found;
      kept_.erase(found);
      kept_bytes_ -= header(memory).bytes;
    } else {
      memory = fresh(bytes);
    }
    used_bytes_ += header(memory).bytes;
    most_bytes_ = std::max(most_bytes_, used_bytes_);
    shrink();
    return memory;
  }

  void put(void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    used_bytes_ -= header(memory).bytes;
    kept_bytes_ += header(memory).bytes;
    kept_.push_front(memory);
    shrink();
  }

 private:
  void shrink() {
    while (!kept_.empty() && used_bytes_ + kept_bytes_ > most_bytes_) {
      kept_bytes_ -= header(kept_.back()).bytes;
      give_back(kept_.back());
      kept_.pop_back();
    }
  }

  std::mutex mutex_;
  std::deque<void*> kept_;  // released blocks, the latest first
  std::size_t used_bytes_ = 0, kept_bytes_ = 0, most_bytes_ = 0;
};

// Never destroyed, because TensorFlow may release memory after static objects are destroyed.
Pool& pool() {
  static Pool& the_pool = *new Pool;
  return the_pool;
}

}  // namespace

// Takes at least a byte: an empty block's address would be just past the allocated memory, so that
// LeakSanitizer would report the memory as lost while the block is in the pool.
void* allocate(std::size_t bytes) { return pool().take(std::max<std::size_t>(bytes, 1)); }

void release(void* memory) { pool().put(memory); }

}  // namespace recurrent
