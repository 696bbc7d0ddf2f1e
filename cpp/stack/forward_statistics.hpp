// The statistics of the forward pass: what each unit leaves of each layer, and what becomes of it over a replicate.
#pragma once

#include <vector>

#include "stack/plan.hpp"

namespace depthgauge::stack {

template <class T>
class ForwardStatistics {
 public:
  ForwardStatistics(const Stack<T>& stack, const Plan& plan, const ForwardResults<T>& results, int threads);

  // Layers that units may be ahead of the reduction, each of which has a slot here.
  int64_t segment() const { return segment_; }
  // Before the layers of a segment.
  void begin_segment();

  // Where a unit leaves its sums over the examples of a state, and that state's pool.
  double* totals(int64_t slot, int64_t unit) { return totals_.get() + (slot * units_ + unit) * d_; }
  Pool* state_pool(int64_t slot, int64_t unit) { return &state_pools_[at(slot, unit)]; }
  // Where a job leaves |phi'(z)|, if that is wanted, and its live units, for all units of its replicate together.
  T* abs_derivative(int64_t unit) const { return quantiles() ? slopes_.get() + unit * m_ * kGroup<T> : nullptr; }
  unsigned char* unit_live(int64_t slot, int64_t replicate) {
    return unit_live_.data() + (slot * stack_.replicates + replicate) * m_;
  }
  // Takes the rest of what a job found.
  void keep(int64_t slot, int64_t unit, const ForwardJob<T>& job);

  // State l of a replicate, whose groups are at `states`, and the block before it; each in the units' fixed order.
  void reduce_state(int64_t replicate, int64_t l, int64_t slot, const T* states, int worker);
  void reduce_block(int64_t replicate, int64_t l, int64_t slot);

 private:
  struct Block {
    Pool pool;
    int64_t live, saturated;
  };

  bool quantiles() const { return !results_.quantiles.empty(); }
  int64_t choose_segment() const;
  size_t at(int64_t slot, int64_t unit) const { return static_cast<size_t>(slot * units_ + unit); }
  void find_quantiles(const T* groups, int64_t features, double* results, int64_t index) const;
  double mean_cosine(const T* states) const;

  const Stack<T>& stack_;
  const Plan& plan_;
  const ForwardResults<T>& results_;
  const int64_t units_, d_, m_, segment_;
  std::vector<Pool> state_pools_;
  std::vector<Block> blocks_;
  Buffer<double> totals_, means_;  // means are one a thread
  std::vector<unsigned char> unit_live_;
  Buffer<T> slopes_;
};

}  // namespace depthgauge::stack
