#include "stack/forward_statistics.hpp"

#include <algorithm>
#include <cmath>

#include "stack/pool.hpp"
#include "stack/quantiles.hpp"

namespace depthgauge::stack {
namespace {

double share(int64_t part, int64_t whole) {
  return whole ? static_cast<double>(part) / static_cast<double>(whole) : std::nan("");
}

}  // namespace

template <class T>
ForwardStatistics<T>::ForwardStatistics(const Stack<T>& stack, const Plan& plan, const ForwardResults<T>& results,
                                        int threads)
    : stack_(stack),
      plan_(plan),
      results_(results),
      units_(static_cast<int64_t>(plan.units.size())),
      d_(stack.equation.width),
      m_(stack.equation.hidden),
      segment_(choose_segment()),
      state_pools_(static_cast<size_t>(segment_ * units_)),
      blocks_(static_cast<size_t>(segment_ * units_)),
      totals_(segment_ * units_ * d_),
      means_(threads * d_),
      unit_live_(static_cast<size_t>(segment_ * stack.replicates * m_)),
      slopes_(quantiles() ? units_ * m_ * kGroup<T> : 0) {}

template <class T>
int64_t ForwardStatistics<T>::choose_segment() const {
  // Quantiles and cosines look at a whole layer at once, before the next one replaces it.
  if (quantiles() || results_.cosine) return 1;
  // Threads wait for each other at the end of a segment; what is kept of it should stay in the caches.
  constexpr int64_t kBytes = 4 << 20, kLongest = 128;
  const int64_t each = units_ * (d_ * 8 + static_cast<int64_t>(sizeof(Pool) + sizeof(Block))) + stack_.replicates * m_;
  return std::clamp<int64_t>(kBytes / std::max<int64_t>(each, 1), 1, kLongest);
}

template <class T>
void ForwardStatistics<T>::begin_segment() {
  std::fill(unit_live_.begin(), unit_live_.end(), static_cast<unsigned char>(0));
}

template <class T>
void ForwardStatistics<T>::keep(int64_t slot, int64_t unit, const ForwardJob<T>& job) {
  state_pools_[at(slot, unit)] = job.next_pool;
  blocks_[at(slot, unit)] = {job.branch_pool, job.live, job.saturated};
}

template <class T>
void ForwardStatistics<T>::reduce_state(int64_t replicate, int64_t l, int64_t slot, const T* states, int worker) {
  const int64_t first = plan_.first_unit[static_cast<size_t>(replicate)];
  const int64_t index = replicate * (stack_.depth + 1) + l, values = stack_.examples * d_;
  double* const mean = means_.get() + worker * d_;
  Pool pool;
  std::fill_n(mean, d_, 0.0);
  for (int64_t unit = first; unit < first + stack_.groups(); ++unit) {
    merge(pool, state_pools_[at(slot, unit)]);
    const double* sums = totals(slot, unit);
    for (int64_t k = 0; k < d_; ++k) mean[k] += sums[k];
  }
  results_.rms[index] = root_mean_square(pool, values);
  results_.max_abs[index] = values ? pool.max_abs : std::nan("");
  results_.nonfinite[index] = pool.nonfinite;
  results_.batch_mean_norm[index] = !values || !std::isfinite(pool.max_abs)
                                        ? results_.max_abs[index]
                                        : norm_of(mean, d_) / static_cast<double>(stack_.examples);
  if (quantiles()) find_quantiles(states, d_, results_.state_quantiles, index);
  if (results_.cosine) results_.cosine[index] = mean_cosine(states);
}

template <class T>
void ForwardStatistics<T>::reduce_block(int64_t replicate, int64_t l, int64_t slot) {
  const int64_t first = plan_.first_unit[static_cast<size_t>(replicate)], index = replicate * stack_.depth + l;
  Pool pool;
  int64_t live = 0, saturated = 0;
  for (int64_t unit = first; unit < first + stack_.groups(); ++unit) {
    const Block& b = blocks_[at(slot, unit)];
    merge(pool, b.pool);
    live += b.live;
    saturated += b.saturated;
  }
  const unsigned char* const flags = unit_live(slot, replicate);
  const int64_t hidden = stack_.examples * m_;
  results_.branch_rms[index] = root_mean_square(pool, stack_.examples * d_);
  results_.live_fraction[index] = share(live, hidden);
  results_.saturation[index] = share(saturated, hidden);
  results_.dead_units[index] = hidden ? share(std::count(flags, flags + m_, 0), m_) : std::nan("");
  if (quantiles()) find_quantiles(slopes_.get() + first * m_ * kGroup<T>, m_, results_.derivative_quantiles, index);
}

template <class T>
void ForwardStatistics<T>::find_quantiles(const T* groups, int64_t features, double* results, int64_t index) const {
  magnitude_quantiles(groups, features, stack_.examples, results_.quantiles,
                      results + index * static_cast<int64_t>(results_.quantiles.size()));
}

// With unit rows e, |sum e|^2 is the sum of |e|^2 and of the cosines of all ordered pairs.
template <class T>
double ForwardStatistics<T>::mean_cosine(const T* states) const {
  const int64_t n = stack_.examples;
  if (n < 2 || d_ == 0) return std::nan("");
  std::vector<double> sum(static_cast<size_t>(d_));
  double own = 0;
  for (int64_t b = 0; b < n; ++b) {
    const T* const h = states + b / kGroup<T> * d_ * kGroup<T> + b % kGroup<T>;
    const auto value = [&](int64_t k) { return static_cast<double>(h[k * kGroup<T>]); };
    double top = 0;
    for (int64_t k = 0; k < d_; ++k) top = std::max(top, std::abs(value(k)));
    const double power = top > 0 && std::isfinite(top) ? near_one(top) : 1;
    const double squares = scaled_squares(d_, power, value);
    const double length = squares == 0 ? 1 : std::sqrt(squares);
    for (int64_t k = 0; k < d_; ++k) {
      const double e = value(k) * power / length;
      sum[static_cast<size_t>(k)] += e;
      own += e * e;
    }
  }
  double pairs = -own;
  for (const double s : sum) pairs += s * s;
  return pairs / (static_cast<double>(n) * static_cast<double>(n - 1));
}

template class ForwardStatistics<float>;
template class ForwardStatistics<double>;

}  // namespace depthgauge::stack
