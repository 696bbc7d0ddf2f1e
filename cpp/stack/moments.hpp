// Sums over the features of each example of a group, and over the examples of a group.
#pragma once

#include "common/simd.hpp"
#include "stack/kernels.hpp"

namespace {

using depthgauge::stack::kMaxGroup;
using depthgauge::stack::Moments;
using depthgauge::stack::Pool;

// Squares of magnitudes in here can be summed as they are; others are scaled by a power of two first.
template <class T>
struct SafeRange;
template <>
struct SafeRange<double> {
  static constexpr double low = 0x1p-480, high = 0x1p500;
};
template <>
struct SafeRange<float> {
  static constexpr float low = 0x1p-40f, high = 0x1p55f;
};

// A running sum for each lane, in double whatever the lanes are.
template <class T>
struct DoubleSum;

template <>
struct DoubleSum<double> {
  Vec<double> v[kVectors] = {};
  DG_INLINE void add(Row<double> r) {
    for (int i = 0; i < kVectors; ++i) v[i] += r.v[i];
  }
  DG_INLINE void add_product(Row<double> a, Row<double> b) {
    for (int i = 0; i < kVectors; ++i) v[i] = fma(a.v[i], b.v[i], v[i]);
  }
};

template <>
struct DoubleSum<float> {
  Vec<double> v[2 * kVectors] = {};
  DG_INLINE void add(Row<float> r) {
    for (int i = 0; i < kVectors; ++i) {
      v[2 * i] += widen_low(r.v[i]);
      v[2 * i + 1] += widen_high(r.v[i]);
    }
  }
  DG_INLINE void add_product(Row<float> a, Row<float> b) {
    for (int i = 0; i < kVectors; ++i) {
      v[2 * i] = fma(widen_low(a.v[i]), widen_low(b.v[i]), v[2 * i]);
      v[2 * i + 1] = fma(widen_high(a.v[i]), widen_high(b.v[i]), v[2 * i + 1]);
    }
  }
};

// Sums of up to kBlock terms are taken in the lanes' own precision, in two chains, and then added to the sum in double:
// such a sum neither stalls nor costs more than the terms do.
constexpr int kBlock = 16;
constexpr int kChains = 2;

template <class T>
struct LaneSum {
  Row<T> part[kChains] = {};
  DoubleSum<T> total;
  DG_INLINE void add(int chain, Row<T> x) { part[chain] = part[chain] + x; }
  DG_INLINE void add_product(int chain, Row<T> x, Row<T> y) { part[chain] = fma(x, y, part[chain]); }
  DG_INLINE void flush() {
    total.add(part[0] + part[1]);
    part[0] = part[1] = Row<T>{};
  }
  DG_INLINE void result(double* out) const { __builtin_memcpy(out, total.v, sizeof total.v); }
};

// body(k, chain) for each feature, flush() after each block.
template <class Body, class Flush>
DG_INLINE void each_feature(int64_t d, Body body, Flush flush) {
  int64_t k = 0;
  for (; k + kBlock <= d; k += kBlock) {
    for (int i = 0; i < kBlock; i += kChains) {
      body(k + i, 0);
      body(k + i + 1, 1);
    }
    flush();
  }
  if (k < d) {
    for (; k < d; ++k) body(k, 0);
    flush();
  }
}

template <class T>
struct MomentSum {
  LaneSum<T> squares;
  Row<T> top = {};
  DG_INLINE void add(int chain, Row<T> x) {
    squares.add_product(chain, x, x);
    for (int i = 0; i < kVectors; ++i) top.v[i] = max_or_second(abs(x.v[i]), top.v[i]);
  }
  DG_INLINE void flush() { squares.flush(); }
};

// The power of two that brings `top` near 1; exact where it is applied, since it stays a normal number.
DG_INLINE double near_one(double top, int lowest, int highest) {
  int e = __builtin_ilogb(top);
  e = e < lowest ? lowest : e > highest ? highest : e;
  return __builtin_ldexp(1.0, -e);
}

template <class T>
DG_INLINE double safe_power(double top) {
  if (!(top > 0) || (top >= SafeRange<T>::low && top <= SafeRange<T>::high)) return 1;
  return sizeof(T) == 4 ? near_one(top, -126, 126) : near_one(top, -1022, 1022);
}

// One example the slow way: it holds NaN or Inf, or its squares leave the range.
template <class T>
__attribute__((noinline)) void rescan(const T* group, int64_t d, int lane, Moments* m) {
  double top = 0;
  bool nan = false;
  int64_t bad = 0;
  for (int64_t k = 0; k < d; ++k) {
    const double x = static_cast<double>(group[k * kLanes<T> + lane]);
    const double a = x < 0 ? -x : x;
    if (!(a <= __DBL_MAX__)) {
      ++bad;
      nan |= a != a;
    } else if (a > top) {
      top = a;
    }
  }
  double sum = 0, power = 1;
  if (bad) {
    sum = top = nan ? __builtin_nan("") : __builtin_inf();
  } else {
    power = safe_power<T>(top);
    for (int64_t k = 0; k < d; ++k) {
      const double x = static_cast<double>(group[k * kLanes<T> + lane]) * power;
      sum += x * x;
    }
  }
  m->sum_squares[lane] = sum;
  m->power[lane] = power;
  m->max_abs[lane] = top;
  m->nonfinite[lane] = bad;
}

// The lanes that need a second look.
template <class T>
DG_INLINE unsigned take_moments(const MomentSum<T>& sum, Moments* m) {
  unsigned odd = 0;
  for (int i = 0; i < kVectors; ++i) {
    const Vec<T> t = sum.top.v[i];
    const Int<T> fine = (t == Vec<T>{}) | ((t >= splat(SafeRange<T>::low)) & (t <= splat(SafeRange<T>::high)));
    odd |= (bits(~fine) << (i * kWidth<T>));
  }
  DoubleSum<T> top;
  top.add(sum.top);
  sum.squares.result(m->sum_squares);
  __builtin_memcpy(m->max_abs, top.v, sizeof top.v);
  for (int i = 0; i < kLanes<T>; i += kWidth<double>) {
    odd |= bits(~(load(m->sum_squares + i) <= splat(__DBL_MAX__))) << i;
    store(m->power + i, splat(1.0));
    __builtin_memset(m->nonfinite + i, 0, kVectorBytes);
  }
  return odd;
}

__attribute__((noinline)) Pool pool_scaled(const Moments& m, int examples) {
  Pool p;
  bool found = false;
  for (int i = 0; i < examples; ++i) {
    if (m.sum_squares[i] == 0) continue;
    if (!found || m.power[i] < p.power) p.power = m.power[i];
    found = true;
  }
  for (int i = 0; i < examples; ++i) {
    const double scale = m.power[i] == p.power ? 1 : p.power / m.power[i];
    p.sum_squares += m.sum_squares[i] * scale * scale;
    p.nonfinite += m.nonfinite[i];
    if (m.max_abs[i] > p.max_abs || m.max_abs[i] != m.max_abs[i])
      if (p.max_abs == p.max_abs) p.max_abs = m.max_abs[i];
  }
  return p;
}

// The moments of `group`, whose rows went into `sum`.
template <class T>
DG_INLINE void finish(const MomentSum<T>& sum, const T* group, int64_t d, Moments* m) {
  const unsigned odd = take_moments(sum, m);
  if (odd)
    for (int i = 0; i < kLanes<T>; ++i)
      if ((odd >> i) & 1) rescan(group, d, i, m);
}

// Pools the examples of a group.  The terms have a common power of two, that of the largest; zeros have no say in it.
DG_INLINE Pool pool(const Moments& m, int examples) {
  Pool p;
  unsigned odd = 0;
  for (int i = 0; i < examples; ++i) {
    odd |= m.power[i] != 1 || m.nonfinite[i] != 0;
    p.sum_squares += m.sum_squares[i];
    p.max_abs = m.max_abs[i] > p.max_abs ? m.max_abs[i] : p.max_abs;
  }
  return odd ? pool_scaled(m, examples) : p;
}

// All ones in the lanes that hold examples.
template <class T>
struct ExampleMask {
  Int<T> v[kVectors];
  DG_INLINE explicit ExampleMask(int examples) {
    for (int i = 0; i < kVectors; ++i) v[i] = from_bits<T>(((1u << examples) - 1u) >> (i * kWidth<T>));
  }
  DG_INLINE Row<T> operator()(Row<T> r) const {
    for (int i = 0; i < kVectors; ++i) r.v[i] = bit_cast<Vec<T>>(bit_cast<Int<T>>(r.v[i]) & v[i]);
    return r;
  }
};

DG_INLINE Vec<double> fold(Row<double> r) {
  Vec<double> s = r.v[0];
  for (int i = 1; i < kVectors; ++i) s += r.v[i];
  return s;
}

DG_INLINE Vec<double> fold(Row<float> r) {
  Vec<double> s = widen_low(r.v[0]) + widen_high(r.v[0]);
  for (int i = 1; i < kVectors; ++i) s += widen_low(r.v[i]) + widen_high(r.v[i]);
  return s;
}

DG_INLINE double across(Vec<double> v) {
  double s = 0;
  for (int i = 0; i < kWidth<double>; ++i) s += v[i];
  return s;
}

// totals[k] = sum over the examples of row(k).
template <class T, class RowOf>
DG_INLINE void totals_of(int64_t d, int examples, RowOf row, double* totals) {
  if (examples < kLanes<T>) {
    const ExampleMask<T> mask(examples);
    for (int64_t k = 0; k < d; ++k) totals[k] = across(fold(mask(row(k))));
    return;
  }
  int64_t k = 0;
#if defined(__AVX2__) && !defined(__AVX512F__)
  for (; k + 4 <= d; k += 4) {
    const __m256d a = fold(row(k)), b = fold(row(k + 1)), c = fold(row(k + 2)), e = fold(row(k + 3));
    const __m256d ab = _mm256_unpacklo_pd(a, b) + _mm256_unpackhi_pd(a, b);
    const __m256d ce = _mm256_unpacklo_pd(c, e) + _mm256_unpackhi_pd(c, e);
    store(totals + k, _mm256_permute2f128_pd(ab, ce, 0x20) + _mm256_permute2f128_pd(ab, ce, 0x31));
  }
#endif
  for (; k < d; ++k) totals[k] = across(fold(row(k)));
}

// The same times `scale`; a scale of 0 leaves the sums out, infinities and all.
template <class T, class RowOf>
DG_INLINE void scaled_totals_of(int64_t d, int examples, double scale, RowOf row, double* totals) {
  if (scale != 0) totals_of<T>(d, examples, row, totals);
  for (int64_t k = 0; k < d; ++k) totals[k] = scale == 0 ? 0 : totals[k] * scale;
}

template <class T>
void group_moments(const T* group, int64_t d, int examples, Moments* m, Pool* p, double* totals) {
  MomentSum<T> sum;
  each_feature(
      d, [&](int64_t k, int chain) DG_INLINE_LAMBDA { sum.add(chain, load_row(group + k * kLanes<T>)); },
      [&]() DG_INLINE_LAMBDA { sum.flush(); });
  finish(sum, group, d, m);
  *p = pool(*m, examples);
  const auto row = [&](int64_t k) DG_INLINE_LAMBDA { return load_row(group + k * kLanes<T>); };
  if (totals) totals_of<T>(d, examples, row, totals);
}

}  // namespace
