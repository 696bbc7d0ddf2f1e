#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "driver/check.hpp"
#include "driver/checks.hpp"
#include "stack/work_queue.hpp"

namespace depthgauge::driver {
namespace {

using stack::Batch;
using stack::WorkQueue;

const Stop kNever{[](void*) { return false; }, nullptr};

std::vector<Batch> batches_of(const std::vector<int64_t>& sizes) {
  std::vector<Batch> batches;
  int64_t first = 0;
  for (const int64_t size : sizes) {
    batches.push_back({first, first + size, static_cast<int64_t>(batches.size())});
    first += size;
  }
  return batches;
}

// Every unit passes every step once, in order, as one of its own batch; `slow` is a worker that takes its time.  Counts
// are not atomic: a unit is with one thread at a time, and what that did is known to the next.
void each_step_in_order(int threads, const std::vector<int64_t>& sizes, int64_t steps, int slow) {
  const std::vector<Batch> batches = batches_of(sizes);
  std::vector<int64_t> passed(batches.empty() ? 0 : static_cast<size_t>(batches.back().last));
  std::atomic<bool> ordered{true}, own{true}, known{true};
  WorkQueue(batches, steps).run(threads, kNever, [&](const Batch& batch, int64_t step, int worker) {
    if (worker < 0 || worker >= threads) known = false;
    const Batch& whole = batches[static_cast<size_t>(batch.set)];
    if (batch.first < whole.first || batch.last > whole.last || batch.first >= batch.last) own = false;
    for (int64_t i = batch.first; i < batch.last; ++i)
      if (passed[static_cast<size_t>(i)]++ != step) ordered = false;
    if (worker == slow) std::this_thread::sleep_for(std::chrono::microseconds(50));
  });
  bool all = true;
  for (const int64_t n : passed) all &= n == steps;
  check(known, "workers of the queue are numbered from 0 up to the threads");
  check(own, "what is handed out is part of one batch");
  check(ordered, "every unit passes the steps in their order");
  check(all, "every unit passes every step");
}

// One batch, long enough for a second thread to come and ask for part of it.
void idle_threads_get_work() {
  std::atomic<int> workers{0};
  WorkQueue(batches_of({8}), 50000).run(2, kNever, [&](const Batch&, int64_t, int worker) {
    workers.fetch_or(1 << worker);
    if (workers.load() != 3) std::this_thread::sleep_for(std::chrono::microseconds(100));
  });
  check(workers.load() == 3, "a thread without a batch gets part of another's");
}

// Once told to stop, no unit begins another step.
void stops() {
  std::atomic<int64_t> steps{0};
  const Stop after_some{[](void* s) { return static_cast<std::atomic<int64_t>*>(s)->load() >= 100; }, &steps};
  WorkQueue(batches_of({3, 4, 1}), int64_t{1} << 40).run(3, after_some, [&](const Batch&, int64_t, int) { ++steps; });
  check(steps.load() < 100 + 3, "a call that is stopped ends");
}

}  // namespace

void check_work_queue() {
  for (const int threads : {1, 2, 3, 7}) {
    set_context("the work queue with " + std::to_string(threads) + " threads");
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{}, {1}, {2}, {5}, {16}, {1, 1}, {4, 4}, {16, 16, 3}, {1, 2, 3, 4, 5, 6, 7}})
      for (const int64_t steps : {0, 1, 2, 60})
        for (const int slow : {-1, 0, 1}) each_step_in_order(threads, sizes, steps, slow);
  }
  set_context("the work queue");
  idle_threads_get_work();
  stops();
}

}  // namespace depthgauge::driver
