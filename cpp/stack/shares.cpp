#include "stack/shares.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace depthgauge::stack {

namespace {

// Half a batch is offered within one step of another thread, which may be microseconds or a second away.
constexpr int kSpins = 10000;
constexpr auto kPause = std::chrono::microseconds(100);

}  // namespace

Shares::Shares(const std::vector<Batch>& batches, int64_t steps) : steps_(steps) {
  // Taken from the back.
  for (auto batch = batches.rbegin(); batch != batches.rend(); ++batch) {
    waiting_.push_back({*batch, 0});
    units_ += batch->last - batch->first;
    divisible_ += waiting_.back().divisible();
  }
  unfinished_ = static_cast<int64_t>(batches.size());
}

int Shares::most_threads(int threads) const { return static_cast<int>(std::min<int64_t>(threads, units_)); }

bool Shares::take(Share& share, int worker, const Stop& stop) {
  seekers_.fetch_add(1, std::memory_order_relaxed);
  for (int looks = 0;; ++looks) {
    const bool stopped = stop();
    {
      const std::lock_guard lock(mutex_);
      // The caller stays to the end: only it can learn that the work is to stop.
      const int64_t in_reserve = worker == 0 ? unfinished_ : divisible_;
      if (!waiting_.empty() || in_reserve == 0 || stopped) {
        seekers_.fetch_sub(1, std::memory_order_relaxed);
        if (waiting_.empty()) return false;
        share = waiting_.back();
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

void Shares::split(Share& share) {
  const std::lock_guard lock(mutex_);
  if (!share.divisible() || seekers_.load(std::memory_order_relaxed) <= static_cast<int>(waiting_.size())) return;
  Share other = share;
  other.batch.first = share.batch.last = share.batch.first + (share.batch.last - share.batch.first) / 2;
  divisible_ += share.divisible() + other.divisible() - 1;
  ++unfinished_;
  waiting_.push_back(other);
}

void Shares::finish(const Share& share) {
  const std::lock_guard lock(mutex_);
  divisible_ -= share.divisible();
  --unfinished_;
}

}  // namespace depthgauge::stack
