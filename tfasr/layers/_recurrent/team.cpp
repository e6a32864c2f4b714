#include "team.hpp"

#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <vector>

#include <pthread.h>

namespace recurrent {
namespace {

// What a thread does next; `left` counts the call's threads that haven't finished.
struct Task {
  Work work;
  const void* context;
  int member;
  std::atomic<int>* left;
};

// A thread that sleeps until it is given a task.
class Worker {
 public:
  // Throws std::system_error if the system refuses a thread.
  Worker() { std::thread([this] { run(); }).detach(); }

  void give(const Task& task) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      task_ = task;
      waiting_ = true;
    }
    given_.notify_one();
  }

 private:
  [[noreturn]] void run() {
    while (true) {
      std::unique_lock<std::mutex> lock(mutex_);
      given_.wait(lock, [this] { return waiting_; });
      waiting_ = false;
      const Task task = task_;
      lock.unlock();
      task.work(task.context, task.member);
      task.left->fetch_sub(1, std::memory_order_release);  // the caller may be gone after this
    }
  }

  std::mutex mutex_;
  std::condition_variable given_;
  Task task_{};
  bool waiting_ = false;
};

// The workers that have nothing to do.
class Idle {
 public:
  // Returns `count` workers, or fewer if the system refuses threads.
  std::vector<Worker*> take(int count) {
    const auto wanted = static_cast<std::size_t>(count);
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::size_t kept = std::min(wanted, workers_.size());
    std::vector<Worker*> taken;
    taken.reserve(wanted);
    taken.assign(workers_.end() - static_cast<std::ptrdiff_t>(kept), workers_.end());
    workers_.resize(workers_.size() - kept);
    try {
      while (taken.size() < wanted) taken.push_back(new Worker);
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {
    }
    return taken;
  }

  void put(const std::vector<Worker*>& workers) {
    const std::lock_guard<std::mutex> lock(mutex_);
    workers_.insert(workers_.end(), workers.begin(), workers.end());
  }

 private:
  std::mutex mutex_;
  std::vector<Worker*> workers_;
};

// Never destroyed, because its threads sleep until the process ends.
std::atomic<Idle*> the_idle{nullptr};

// A forked process lacks its parent's threads, and another thread may have held a lock when
// it forked. So it starts with new workers.
void begin_anew() { the_idle.store(new Idle); }

Idle& idle() {
  static const bool made = [] {
    begin_anew();
    pthread_atfork(nullptr, nullptr, begin_anew);
    return true;
  }();
  static_cast<void>(made);
  return *the_idle.load();
}

}  // namespace

int run_team(int count, Work work, const void* context) {
  if (count == 1) {
    work(context, 0);
    return 1;
  }
  Idle& pool = idle();
  const std::vector<Worker*> others = pool.take(count - 1);
  const int running = static_cast<int>(others.size()) + 1;
  if (running == count) {
    std::atomic<int> left{count - 1};
    for (int i = 1; i < count; ++i) {
      others[static_cast<std::size_t>(i) - 1]->give({work, context, i, &left});
    }
    work(context, 0);
    wait_for([&] { return left.load(std::memory_order_acquire) == 0; });
  }  // else: nothing was started, because members would wait forever for the missing ones
  pool.put(others);
  return running;
}

}  // namespace recurrent
