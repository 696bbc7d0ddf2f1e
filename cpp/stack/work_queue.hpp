// Batches that several threads take through the same steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "common/stop.hpp"
#include "common/thread_pool.hpp"
#include "stack/plan.hpp"

namespace depthgauge::stack {

// A thread that finds no batch left gets half the units of one that is under way.  Threads are seldom equally fast:
// cores differ, and share their caches and units with others; in a long stack the slowest would keep all others
// waiting.
class WorkQueue {
 public:
  WorkQueue(const std::vector<Batch>& batches, int64_t steps);

  // step(batch, index, worker) takes the units of a batch through one step, and does not throw.  Every unit passes all
  // steps in their order.
  template <class Step>
  void run(int threads, const Stop& stop, const Step& step) {
    const int workers = prepare(threads);
    parallel(workers, workers, [&](int64_t, int worker) {
      for (Item item; take(item, worker, stop);) {
        for (; item.step < steps_ && !stop(); ++item.step) {
          if (seekers_.load(std::memory_order_relaxed) > 0) split(item);
          step(item.batch, item.step, worker);
        }
        finish(item);
      }
    });
  }

 private:
  struct Item {
    Batch batch;
    int64_t step;
    bool divisible() const { return batch.last - batch.first > 1; }
  };

  int prepare(int threads);
  bool take(Item& item, int worker, const Stop& stop);
  void split(Item& item);
  void finish(const Item& item);

  const int64_t steps_;
  int64_t units_ = 0;
  std::atomic<int> seekers_{0};
  std::atomic<int64_t> changes_{0};
  std::mutex mutex_;
  std::vector<Item> waiting_;
  int64_t unfinished_ = 0, divisible_ = 0;  // items that wait or are under way
};

}  // namespace depthgauge::stack
