#include "common/thread_pool.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <pthread.h>
#include <sched.h>

namespace depthgauge {
namespace {

// Some schedulers wake a thread on the caller's CPU, and move it only milliseconds later, when a short call is over.
// So a worker is told where to go before it is woken, and is free again once it runs.
class Placement {
 public:
#if defined(__linux__)
  // In the worker: where it runs.
  void note() { cpu_ = sched_getcpu(); }
  // In the caller: keeps the `number`th worker, asleep or looking for work, off the caller's CPU.
  void keep_off_caller(pthread_t worker, int number, bool asleep) {
    const int here = sched_getcpu();
    if (!asleep && cpu_ != here) return;
    if (sched_getaffinity(0, sizeof allowed_, &allowed_) != 0 || CPU_COUNT(&allowed_) < 2) return;
    int cpu = cpu_;
    if (cpu < 0 || cpu == here || !CPU_ISSET(cpu, &allowed_)) {
      int skip = (number - 1) % (CPU_COUNT(&allowed_) - 1);
      cpu = here;
      do {
        cpu = (cpu + 1) % CPU_SETSIZE;
      } while (cpu == here || !CPU_ISSET(cpu, &allowed_) || skip-- > 0);
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    held_ = pthread_setaffinity_np(worker, sizeof one, &one) == 0;
  }
  // In the worker, running again: from here on the scheduler is free to choose.
  void release() {
    if (held_) pthread_setaffinity_np(pthread_self(), sizeof allowed_, &allowed_);
    held_ = false;
  }

 private:
  int cpu_ = -1;
  bool held_ = false;
  cpu_set_t allowed_;
#else
  void note() {}
  void keep_off_caller(pthread_t, int, bool) {}
  void release() {}
#endif
};

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
      for (Worker& w : crew_)
        if (w.number <= limit_) w.placement.keep_off_caller(w.handle, w.number, w.asleep);
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
      relax(i);
      lock.lock();
    }
    done_.wait(lock, [&] { return joined_ == 0; });
  }

  // What a task of the last run threw, if one did; the pool does not keep it.
  std::exception_ptr take_failure() { return std::exchange(failure_, nullptr); }

 private:
  struct Worker {
    int number;
    pthread_t handle;
    Placement placement;
    bool asleep;
  };

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
    Worker* self = nullptr;
    {
      std::lock_guard lock(mutex_);
      self = &crew_.emplace_back(Worker{worker, pthread_self(), {}, false});
      self->placement.note();
    }
    for (;;) {
      for (int i = 0; i < kSpins && generation_.load(std::memory_order_acquire) == seen; ++i) relax(i);
      std::unique_lock lock(mutex_);
      self->asleep = true;
      self->placement.note();
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
      self->asleep = false;
      self->placement.release();
      self->placement.note();
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
  std::deque<Worker> crew_;  // does not move what it holds
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

void relax(int spin) {
  constexpr int kSpinsBetweenYields = 64;
  if (spin % kSpinsBetweenYields == kSpinsBetweenYields - 1) {
    std::this_thread::yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

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
