#include "stack/pool.hpp"

#include <algorithm>
#include <cmath>

namespace depthgauge::stack {

double near_one(double top) {
  int exponent;
  std::frexp(top, &exponent);
  return std::ldexp(1.0, std::clamp(-exponent, -1022, 1022));
}

void merge(Pool& into, const Pool& more) {
  into.nonfinite += more.nonfinite;
  if (!std::isnan(into.max_abs) && (more.max_abs > into.max_abs || std::isnan(more.max_abs)))
    into.max_abs = more.max_abs;
  if (more.sum_squares == 0) return;
  if (into.sum_squares == 0) {
    into.sum_squares = more.sum_squares;
    into.power = more.power;
    return;
  }
  const double power = std::fmin(into.power, more.power);
  const double mine = power / into.power, theirs = power / more.power;
  into.sum_squares = into.sum_squares * mine * mine + more.sum_squares * theirs * theirs;
  into.power = power;
}

template <class T>
Pool pool_values(const T* values, int64_t count) {
  Pool pool;
  // Nearly always the squares are in range as they are: one pass, in chains that do not wait for each other.
  double sums[4] = {}, top = 0;
  bool nan = false;
  for (int64_t i = 0; i < count; ++i) {
    const double x = std::abs(static_cast<double>(values[i]));
    top = std::max(top, x);
    nan |= std::isnan(x);
    sums[i & 3] += x * x;
  }
  pool.max_abs = nan ? std::nan("") : top;
  pool.sum_squares = nan ? std::nan("") : (sums[0] + sums[1]) + (sums[2] + sums[3]);
  if (nan || top == 0 || (top > 0x1p-480 && top < 0x1p480) || std::isinf(top)) return pool;
  pool.power = near_one(top);
  pool.sum_squares = scaled_squares(count, pool.power, [&](int64_t k) { return static_cast<double>(values[k]); });
  return pool;
}

double root_mean_square(const Pool& pool, int64_t count) {
  return count ? std::sqrt(pool.sum_squares / static_cast<double>(count)) / pool.power : std::nan("");
}

double norm_of(const double* values, int64_t count) {
  double top = 0;
  for (int64_t k = 0; k < count; ++k) top = std::max(top, std::abs(values[k]));
  if (top == 0) return 0;
  const double power = near_one(top);
  return std::sqrt(scaled_squares(count, power, [&](int64_t k) { return values[k]; })) / power;
}

template Pool pool_values(const float*, int64_t);
template Pool pool_values(const double*, int64_t);

}  // namespace depthgauge::stack
