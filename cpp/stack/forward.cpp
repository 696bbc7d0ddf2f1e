#include <algorithm>

#include "stack/plan.hpp"
#include "stack/shares.hpp"

namespace depthgauge::stack {
namespace {

// The forward pass of one call.  States are made a few layers at a time: within such a stretch every group goes its own
// way, and then the statistics of all groups are put together in their fixed order.
template <class T>
class Forward {
 public:
  Forward(const Stack<T>& stack, const Rows<T>& rows, const int64_t* x_of, const TapeArrays<T>& tape,
          const ForwardResults<T>& results, const Resources& resources)
      : stack_(stack),
        rows_(rows),
        x_of_(x_of),
        tape_(tape),
        results_(results),
        resources_(resources),
        table_(kernels<T>(resources.target)),
        plan_(make_plan(stack, 1, resources.threads, by_set(stack))),
        units_(static_cast<int64_t>(plan_.units.size())),
        d_(stack.equation.width),
        m_(stack.equation.hidden),
        stretch_(choose_stretch()),
        ring_(tape.states ? 0 : 2 * units_ * d_ * kGroup<T>),
        moments_(units_),
        state_pools_(static_cast<size_t>(stretch_ * units_)),
        blocks_(static_cast<size_t>(stretch_ * units_)),
        totals_(stretch_ * units_ * d_),
        means_(resources.threads * d_),
        unit_live_(static_cast<size_t>(stretch_ * stack.replicates * m_)),
        slopes_(results.quantiles.empty() ? 0 : units_ * m_ * kGroup<T>),
        scratch_size_(table_.scratch(stack.equation, kMaxJobs)),
        scratch_(scratch_size_ * resources.threads) {}

  void run() {
    for (int64_t first = 0; first <= stack_.depth; first += stretch_) {
      const int64_t count = std::min(stretch_, stack_.depth + 1 - first);
      std::fill(unit_live_.begin(), unit_live_.end(), static_cast<unsigned char>(0));
      Shares(plan_.batches, count).run(resources_.threads, resources_.stop,
                                       [&](const Batch& batch, int64_t slot, int worker) {
                                         make_states(batch, first + slot, slot, worker);
                                       });
      if (stopped()) return;
      parallel(resources_.threads, count * stack_.replicates, [&](int64_t i, int worker) {
        const int64_t slot = i / stack_.replicates, r = i % stack_.replicates;
        reduce_state(r, first + slot, slot, means_.get() + worker * d_);
        if (first + slot > 0) reduce_block(r, first + slot - 1, slot);
      });
    }
  }

 private:
  struct Block {
    Pool pool;
    int64_t live, saturated;
  };

  bool stopped() const { return resources_.stop(); }

  // Statistics that look at a whole layer at once need it before the next one replaces it.
  int64_t choose_stretch() const {
    if (!results_.quantiles.empty() || results_.cosine) return 1;
    // Threads wait for each other at the end of a stretch; what is kept of it should stay in the caches.
    constexpr int64_t kBytes = 4 << 20, kLongest = 128;
    const int64_t each = units_ * (d_ * 8 + static_cast<int64_t>(sizeof(Pool) + sizeof(Block))) + stack_.replicates * m_;
    return std::clamp<int64_t>(kBytes / std::max<int64_t>(each, 1), 1, kLongest);
  }

  T* state(int64_t unit, int64_t l) const {
    if (tape_.states) return state_of(stack_, tape_.states, plan_.units[static_cast<size_t>(unit)], l);
    return ring_.get() + ((l % 2) * units_ + unit) * d_ * kGroup<T>;
  }

  // State l of some units, from the one before; the statistics of it and of the block before it go to a slot.
  void make_states(const Batch& batch, int64_t l, int64_t slot, int worker) {
    if (l == 0)
      enter(batch);
    else
      pass(batch, l - 1, slot, worker);
    if (l < stack_.depth) return;
    for (int64_t i = batch.first; i < batch.last; ++i) {
      const Unit& unit = plan_.units[static_cast<size_t>(i)];
      write_group(state(i, l), d_, unit, results_.output + unit.replicate * stack_.examples * d_);
    }
  }

  void enter(const Batch& batch) {
    for (int64_t i = batch.first; i < batch.last; ++i) {
      const Unit& unit = plan_.units[static_cast<size_t>(i)];
      T* h = state(i, 0);
      read_group(rows_, 0, x_of_[unit.replicate], unit, d_, h);
      table_.moments(h, d_, unit.examples, moments_.get() + i, &state_pools_[static_cast<size_t>(i)],
                     totals_.get() + i * d_);
    }
  }

  void pass(const Batch& batch, int64_t l, int64_t slot, int worker) {
    ForwardJob<T> jobs[kMaxJobs];
    const int64_t count = batch.last - batch.first;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t i = batch.first + j;
      const Unit& unit = plan_.units[static_cast<size_t>(i)];
      ForwardJob<T>& job = jobs[j];
      job.state = state(i, l);
      job.next = state(i, l + 1);
      job.moments = moments_.get() + i;
      job.tape = tape_.states ? tape_of(stack_, tape_, unit, l) : Tape<T>{};
      job.abs_derivative = results_.quantiles.empty() ? nullptr : slopes_.get() + i * m_ * kGroup<T>;
      job.totals = totals_.get() + (slot * units_ + i) * d_;
      job.unit_live = unit_live_.data() + (slot * stack_.replicates + unit.replicate) * m_;
      job.examples = unit.examples;
    }
    table_.forward(stack_.equation, stack_.layer(batch.set, l, l + 1), jobs, count, scratch_.get() + worker * scratch_size_,
                   resources_.stop);
    for (int64_t j = 0; j < count; ++j) {
      const auto at = static_cast<size_t>(slot * units_ + batch.first + j);
      state_pools_[at] = jobs[j].next_pool;
      blocks_[at] = {jobs[j].branch_pool, jobs[j].live, jobs[j].saturated};
    }
  }

  void reduce_state(int64_t r, int64_t l, int64_t slot, double* mean) {
    const int64_t first = plan_.first_unit[static_cast<size_t>(r)], at = r * (stack_.depth + 1) + l;
    Pool pool;
    std::fill_n(mean, d_, 0.0);
    for (int64_t g = 0; g < stack_.groups(); ++g) {
      const int64_t unit = slot * units_ + first + g;
      merge(pool, state_pools_[static_cast<size_t>(unit)]);
      const double* totals = totals_.get() + unit * d_;
      for (int64_t k = 0; k < d_; ++k) mean[k] += totals[k];
    }
    const int64_t values = stack_.examples * d_;
    results_.rms[at] = root_mean_square(pool, values);
    results_.max_abs[at] = values ? pool.max_abs : std::nan("");
    results_.nonfinite[at] = pool.nonfinite;
    results_.batch_mean_norm[at] = !values || !std::isfinite(pool.max_abs)
                                       ? results_.max_abs[at]
                                       : norm_of(mean, d_) / static_cast<double>(stack_.examples);
    if (!results_.quantiles.empty()) state_quantiles(r, l, at);
    if (results_.cosine) results_.cosine[at] = mean_cosine(r, l);
  }

  void reduce_block(int64_t r, int64_t l, int64_t slot) {
    const int64_t first = plan_.first_unit[static_cast<size_t>(r)], at = r * stack_.depth + l;
    Pool pool;
    int64_t live = 0, saturated = 0;
    for (int64_t g = 0; g < stack_.groups(); ++g) {
      const Block& b = blocks_[static_cast<size_t>(slot * units_ + first + g)];
      merge(pool, b.pool);
      live += b.live;
      saturated += b.saturated;
    }
    const auto share = [](int64_t part, int64_t whole) {
      return whole ? static_cast<double>(part) / static_cast<double>(whole) : std::nan("");
    };
    const auto flags = unit_live_.begin() + (slot * stack_.replicates + r) * m_;
    const int64_t hidden = stack_.examples * m_;
    results_.branch_rms[at] = root_mean_square(pool, stack_.examples * d_);
    results_.live_fraction[at] = share(live, hidden);
    results_.saturation[at] = share(saturated, hidden);
    results_.dead_units[at] = hidden ? share(std::count(flags, flags + m_, 0), m_) : std::nan("");
    if (!results_.quantiles.empty()) slope_quantiles(first, at);
  }

  static double norm_of(const double* v, int64_t n) {
    double top = 0, sum = 0;
    for (int64_t k = 0; k < n; ++k) top = std::max(top, std::abs(v[k]));
    if (top == 0) return 0;
    int exponent;
    std::frexp(top, &exponent);
    exponent = std::max(exponent, -1023);  // the scale stays finite
    const double scale = std::ldexp(1.0, -exponent);
    for (int64_t k = 0; k < n; ++k) sum += (v[k] * scale) * (v[k] * scale);
    return std::ldexp(std::sqrt(sum), exponent);
  }

  void state_quantiles(int64_t r, int64_t l, int64_t at) {
    std::vector<double> values;
    values.reserve(static_cast<size_t>(stack_.examples * d_));
    each_row(r, l, [&](const T* h, int lane) {
      for (int64_t k = 0; k < d_; ++k) values.push_back(std::abs(static_cast<double>(h[k * kGroup<T> + lane])));
    });
    magnitude_quantiles(values, results_.quantiles,
                        results_.state_quantiles + at * static_cast<int64_t>(results_.quantiles.size()));
  }

  void slope_quantiles(int64_t first, int64_t at) {
    std::vector<double> values;
    values.reserve(static_cast<size_t>(stack_.examples * m_));
    for (int64_t g = 0; g < stack_.groups(); ++g) {
      const T* slopes = slopes_.get() + (first + g) * m_ * kGroup<T>;
      for (int64_t j = 0; j < m_; ++j)
        for (int lane = 0; lane < plan_.units[static_cast<size_t>(first + g)].examples; ++lane)
          values.push_back(static_cast<double>(slopes[j * kGroup<T> + lane]));
    }
    magnitude_quantiles(values, results_.quantiles,
                        results_.derivative_quantiles + at * static_cast<int64_t>(results_.quantiles.size()));
  }

  // With unit rows e, |sum e|^2 is the sum of |e|^2 and of the cosines of all ordered pairs.
  double mean_cosine(int64_t r, int64_t l) {
    const int64_t n = stack_.examples;
    if (n < 2 || d_ == 0) return std::nan("");
    std::vector<double> sum(static_cast<size_t>(d_));
    double own = 0;
    each_row(r, l, [&](const T* h, int lane) {
      double top = 0, length = 0;
      const auto value = [&](int64_t k) { return static_cast<double>(h[k * kGroup<T> + lane]); };
      for (int64_t k = 0; k < d_; ++k) top = std::max(top, std::abs(value(k)));
      if (top == 0 && value(0) == 0) top = 1;
      int exponent = 0;
      if (std::isfinite(top)) std::frexp(top, &exponent);
      for (int64_t k = 0; k < d_; ++k) length += std::pow(std::ldexp(value(k), -exponent), 2);
      length = length == 0 ? 1 : std::sqrt(length);
      for (int64_t k = 0; k < d_; ++k) {
        const double e = std::ldexp(value(k), -exponent) / length;
        sum[static_cast<size_t>(k)] += e;
        own += e * e;
      }
    });
    double pairs = -own;
    for (const double s : sum) pairs += s * s;
    return pairs / (static_cast<double>(n) * static_cast<double>(n - 1));
  }

  template <class Row>
  void each_row(int64_t r, int64_t l, Row row) {
    const int64_t first = plan_.first_unit[static_cast<size_t>(r)];
    for (int64_t g = 0; g < stack_.groups(); ++g)
      for (int lane = 0; lane < plan_.units[static_cast<size_t>(first + g)].examples; ++lane)
        row(state(first + g, l), lane);
  }

  const Stack<T>& stack_;
  const Rows<T>& rows_;
  const int64_t* x_of_;
  const TapeArrays<T>& tape_;
  const ForwardResults<T>& results_;
  const Resources& resources_;
  const Kernels<T> table_;
  const Plan plan_;
  const int64_t units_, d_, m_, stretch_;
  Buffer<T> ring_;
  Buffer<Moments> moments_;
  std::vector<Pool> state_pools_;
  std::vector<Block> blocks_;
  Buffer<double> totals_;
  Buffer<double> means_;  // one a thread
  std::vector<unsigned char> unit_live_;
  Buffer<T> slopes_;
  const int64_t scratch_size_;
  Buffer<T> scratch_;
};

}  // namespace

template <class T>
void forward(const Stack<T>& stack, const Rows<T>& rows, const int64_t* x_of, const TapeArrays<T>& tape,
             const ForwardResults<T>& results, const Resources& resources) {
  Forward<T>(stack, rows, x_of, tape, results, resources).run();
}

template void forward(const Stack<float>&, const Rows<float>&, const int64_t*, const TapeArrays<float>&,
                      const ForwardResults<float>&, const Resources&);
template void forward(const Stack<double>&, const Rows<double>&, const int64_t*, const TapeArrays<double>&,
                      const ForwardResults<double>&, const Resources&);

}  // namespace depthgauge::stack
