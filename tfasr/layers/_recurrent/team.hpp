// Teams of threads that solve one problem together and wait for each other after every step.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>

namespace recurrent {

// Tells the processor that this thread is waiting: the core's other hyperthread then runs faster.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns when ready() is true. A step takes microseconds. If it takes longer, another thread
// probably occupies a peer's core, so this one yields its own.
template <class Ready>
void wait_for(const Ready& ready) {
  for (int spins = 0; !ready(); ++spins) {
    if (spins > 500) {
      std::this_thread::yield();
    } else {
      relax();
    }
  }
}

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
    wait_for([&] { return phase_.load(std::memory_order_acquire) != phase; });
  }

 private:
  // On separate cache lines, so that arriving threads don't slow down those that wait.
  alignas(64) std::atomic<int> phase_{0};
  alignas(64) std::atomic<int> arrived_{0};
  const int members_;
};

// How threads share a recurrence: each group has its own utterances and never waits for another
// group. A group's members share its units and wait for each other's results after each step.
struct TeamPlan {
  int groups;
  int members;
};

// If the weights fit into a core's cache (kCache bytes), it is fastest that each core reads all of
// them for its own utterances, of which it needs at least kLeastRows. Larger weights are split
// among a group's members, so that each core reads only its part in every step.
inline TeamPlan plan_team(int threads, std::size_t batch, std::size_t blocks,
                          std::size_t weight_bytes) {
  constexpr std::size_t kCache = 5 << 18, kLeastRows = 4;
  const auto most_members = static_cast<int>(blocks);
  const auto wanted = static_cast<int>((weight_bytes + kCache - 1) / kCache);
  const auto most_groups = static_cast<int>(std::max<std::size_t>(1, batch / kLeastRows));
  int members = std::min({threads, std::max(wanted, 1), most_members});
  while (threads % members) ++members;
  members = std::min(members, most_members);
  const int groups = std::max(1, std::min(threads / members, most_groups));
  return {groups, std::min(threads / groups, most_members)};
}

struct Range {
  std::size_t begin, end;
};

inline Range part_of(std::size_t count, int parts, int part) {
  const auto n = static_cast<std::size_t>(parts), i = static_cast<std::size_t>(part);
  return {count * i / n, count * (i + 1) / n};
}

using Work = void (*)(const void* context, int member);

// Calls work(context, 0) ... work(context, count - 1) in parallel, the first on the caller's own
// thread. Returns `count`. If the system refuses some of the threads (a limit on memory or
// processes), it starts no work and returns how many could have run. Threads are kept for later
// calls, and each works for one call at a time. Any thread may call this.
int run_team(int count, Work work, const void* context);

template <class Function>
int run_team(int count, const Function& function) {
  const auto call = [](const void* context, int member) {
    (*static_cast<const Function*>(context))(member);
  };
  return run_team(count, call, &function);
}

}  // namespace recurrent
