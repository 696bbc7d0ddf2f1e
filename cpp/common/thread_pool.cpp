#include "common/thread_pool.hpp"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace depthgauge {
namespace {

// A stack's layers follow each other within microseconds, so a worker looks for the next piece of work this often
// before it sleeps.
constexpr int kSpins = 2000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  bool take() { return !taken_.exchange(true, std::memory_order_acquire); }
  void give_back() { taken_.store(false, std::memory_order_release); }

  void run(int threads, int64_t count, void (*task)(void*, int64_t, int), void* context) {
    {
      std::lock_guard lock(mutex_);
      try {
        for (; workers_ < threads - 1; ++workers_) std::thread(&Pool::work, this, workers_ + 1).detach();
      } catch (const std::exception&) {
        // The system has no more threads or memory to give; the threads that there are do the work.
      }
      task_ = task;
      context_ = context;
      count_ = count;
      limit_ = threads - 1;
      next_.store(0, std::memory_order_relaxed);
      failure_ = nullptr;
      open_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    drain(0);
    // Nobody may join from here on; wait for those who did, not for those who sleep.
    std::unique_lock lock(mutex_);
    open_ = false;
    for (int i = 0; joined_ > 0 && i < kSpins; ++i) {
      lock.unlock();
      relax();
      lock.lock();
    }
    done_.wait(lock, [&] { return joined_ == 0; });
  }

  // What a task of the last run threw, if one did; the pool does not keep it.
  std::exception_ptr take_failure() { return std::exchange(failure_, nullptr); }

 private:
  void drain(int worker) {
    for (;;) {
      const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= count_) return;
      try {
        task_(context_, i, worker);
      } catch (...) {
        next_.store(count_, std::memory_order_relaxed);
        std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
    }
  }

  void work(int worker) {
    uint64_t seen = 0;
    for (;;) {
      for (int i = 0; i < kSpins && generation_.load(std::memory_order_acquire) == seen; ++i) relax();
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
      seen = generation_.load(std::memory_order_relaxed);
      if (!open_ || worker > limit_) continue;
      ++joined_;
      lock.unlock();
      drain(worker);
      lock.lock();
      if (--joined_ == 0) done_.notify_one();
    }
  }

  std::atomic<bool> taken_{false};
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int64_t> next_{0};
  // Guarded by the mutex, or constant while a call runs.
  bool open_ = false;
  int workers_ = 0, limit_ = 0, joined_ = 0;
  int64_t count_ = 0;
  void (*task_)(void*, int64_t, int) = nullptr;
  void* context_ = nullptr;
  std::exception_ptr failure_;
};

// Never destroyed: its threads outlive every destructor.  A forked child has none of them, and starts a new pool.
std::atomic<Pool*> pool{nullptr};

Pool& the_pool() {
  static const bool watched = [] {
#if defined(__unix__) || defined(__APPLE__)
    pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr); });
#endif
    return true;
  }();
  static_cast<void>(watched);
  Pool* p = pool.load();
  if (!p) {
    Pool* fresh = new Pool;
    if (pool.compare_exchange_strong(p, fresh))
      p = fresh;
    else
      delete fresh;
  }
  return *p;
}

}  // namespace

void run_tasks(int threads, int64_t count, void (*task)(void*, int64_t, int), void* context) {
  if (threads > count) threads = static_cast<int>(count);
  if (threads > 1) {
    Pool& p = the_pool();
    if (p.take()) {
      p.run(threads, count, task, context);
      const std::exception_ptr failure = p.take_failure();
      p.give_back();
      if (failure) std::rethrow_exception(failure);
      return;
    }
  }
  for (int64_t i = 0; i < count; ++i) task(context, i, 0);
}

}  // namespace depthgauge
