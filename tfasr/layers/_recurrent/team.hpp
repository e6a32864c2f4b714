// Threads that work on one problem and wait for each other after every step.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace recurrent {

class Barrier {
 public:
  explicit Barrier(int members) : members_(members) {}

  void wait() {
    if (members_ == 1) return;
    const int phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members_) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    // A step takes microseconds; a thread that waits longer has lost its peer's core to others.
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
      if (spins > 2000) std::this_thread::yield();
    }
  }

 private:
  const int members_;
  std::atomic<int> arrived_{0};
  std::atomic<int> phase_{0};
};

// How threads share a problem: in groups by utterances, which wait for nobody else, and inside of a
// group by units, after each step of which all need the others' results.
struct Sharing {
  int groups;
  int members;
};

// Weights that fit a core's cache are best read by each core for its own utterances; more are
// split, so that each core reads only its part in every step.
inline Sharing share(int threads, std::size_t batch, std::size_t blocks, std::size_t weight_bytes) {
  constexpr std::size_t kCache = 5 << 18;
  const auto wanted = static_cast<int>((weight_bytes + kCache - 1) / kCache);
  int members = std::min({threads, std::max(wanted, 1), static_cast<int>(blocks)});
  while (threads % members) ++members;
  members = std::min(members, static_cast<int>(blocks));
  const int groups = std::max(1, std::min(threads / members, static_cast<int>(batch)));
  if (groups == 1) members = std::min(threads, static_cast<int>(blocks));
  return {groups, members};
}

struct Range {
  std::size_t begin, end;
};

inline Range part_of(std::size_t count, int parts, int part) {
  const auto n = static_cast<std::size_t>(parts), i = static_cast<std::size_t>(part);
  return {count * i / n, count * (i + 1) / n};
}

// Runs work(0) ... work(count - 1) at the same time; the caller's thread takes the first. Returns
// `count`; or, where the system refused threads (a limit on memory or processes) and no work was
// therefore begun, how many could have run.
template <class Work>
int run_team(int count, const Work& work) {
  enum class Order { kWait, kWork, kLeave };
  std::atomic<Order> order{Order::kWait};
  std::vector<std::thread> others;
  others.reserve(static_cast<std::size_t>(count) - 1);
  int running = 1;
  try {
    for (; running < count; ++running) {
      others.emplace_back([&order, &work, id = running] {
        while (order.load(std::memory_order_acquire) == Order::kWait) std::this_thread::yield();
        if (order.load(std::memory_order_relaxed) == Order::kWork) work(id);
      });
    }
  } catch (const std::system_error&) {  // members wait for one another: fewer cannot do this work
  }
  order.store(running == count ? Order::kWork : Order::kLeave, std::memory_order_release);
  if (running == count) work(0);
  for (std::thread& other : others) other.join();
  return running;
}

}  // namespace recurrent
