#include "stack/work_queue.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace depthgauge::stack {

namespace {

// Half a batch is offered within one step of another thread, which may be microseconds or a second away.
constexpr auto kPause = std::chrono::microseconds(100);

}  // namespace

WorkQueue::WorkQueue(const std::vector<Batch>& batches, int64_t steps) : steps_(steps) {
  // Taken from the back.
  for (auto batch = batches.rbegin(); batch != batches.rend(); ++batch) {
    waiting_.push_back({*batch, 0});
    units_ += batch->last - batch->first;
    divisible_ += waiting_.back().divisible();
  }
  unfinished_ = static_cast<int64_t>(batches.size());
}

// How many threads have a use.  Nothing is allocated later, where a failure would leave the others waiting.
int WorkQueue::prepare(int threads) {
  threads = static_cast<int>(std::min<int64_t>(threads, units_));
  waiting_.reserve(waiting_.size() + static_cast<size_t>(threads));
  return threads;
}

bool WorkQueue::take(Item& item, int worker, const Stop& stop) {
  seekers_.fetch_add(1, std::memory_order_relaxed);
  int64_t seen = -1;
  for (int looks = 0;; ++looks) {
    const bool stopped = stop();
    const int64_t changes = changes_.load(std::memory_order_acquire);
    if (changes != seen || stopped) {
      seen = changes;
      const std::lock_guard lock(mutex_);
      // Where nothing can be divided, nothing more will be offered.  The caller stays to the end all the same: only it
      // can learn that the work is to stop.
      const int64_t in_reserve = worker == 0 ? unfinished_ : divisible_;
      if (!waiting_.empty() || in_reserve == 0 || stopped) {
        seekers_.fetch_sub(1, std::memory_order_relaxed);
        if (waiting_.empty()) return false;
        item = waiting_.back();
        waiting_.pop_back();
        return true;
      }
    }
    if (looks < kSpins)
      relax(looks);
    else
      std::this_thread::sleep_for(kPause);
  }
}

void WorkQueue::split(Item& item) {
  const std::lock_guard lock(mutex_);
  if (!item.divisible() || seekers_.load(std::memory_order_relaxed) <= static_cast<int>(waiting_.size())) return;
  Item other = item;
  other.batch.first = item.batch.last = item.batch.first + (item.batch.last - item.batch.first) / 2;
  divisible_ += item.divisible() + other.divisible() - 1;
  ++unfinished_;
  waiting_.push_back(other);
  changes_.fetch_add(1, std::memory_order_release);
}

void WorkQueue::finish(const Item& item) {
  const std::lock_guard lock(mutex_);
  divisible_ -= item.divisible();
  --unfinished_;
  changes_.fetch_add(1, std::memory_order_release);
}

}  // namespace depthgauge::stack
