// Powers of two as scales, and rows of doubles padded to whole vectors.
#pragma once

#include "common/register_transpose.hpp"

namespace {

constexpr int kW = kWidth<double>;

// Stands for the exponent of zero: less than any other, and far enough from the ends to add a few.
constexpr int64_t kNothing = -(int64_t{1} << 60);

// Doubles from one row to the next: whole cache lines, and no power of two that would pile a column up in few sets.
DG_INLINE int64_t row_stride(int64_t columns) {
  const int64_t lines = (columns + 7) / 8;
  return 8 * (lines % 8 ? lines : lines + 1);
}

DG_INLINE int64_t whole_vectors(int64_t columns) { return (columns + kW - 1) / kW * kW; }

// The power of two just above |x|; kNothing of zero.
DG_INLINE int64_t exponent(double x) {
  const auto magnitude = bit_cast<uint64_t>(x) << 1;
  if (magnitude == 0) return kNothing;
  const auto biased = static_cast<int64_t>(magnitude >> 53);
  if (biased != 0) return biased - 1022;
  return static_cast<int64_t>(bit_cast<uint64_t>(x * 0x1p64) << 1 >> 53) - 1022 - 64;
}

// exponent(x) + |x| / 2^exponent(x), which grows with x, for a normal x > 0: close to its log2.
DG_INLINE double rough_log2(double x) {
  const auto bits = bit_cast<uint64_t>(x);
  const auto fraction = bit_cast<double>((bits & 0xfffffffffffff) | (uint64_t{1022} << 52));
  return static_cast<double>(static_cast<int64_t>(bits >> 52) - 1022) + fraction;
}

// 2^e; 0 below the normal range.
DG_INLINE double power(int64_t e) {
  const int64_t biased = e < -1022 ? 0 : e > 1023 ? 2046 : e + 1023;
  return bit_cast<double>(static_cast<uint64_t>(biased) << 52);
}

// x * 2^e for an e of any size, rounded once.
DG_INLINE double scale(double x, int64_t e) {
  if (e >= -1000 && e <= 1000) return x * power(e);
  const int64_t step = e < 0 ? -1000 : 1000;
  for (int i = 0; i < 4 && (e < -1000 || e > 1000); ++i, e -= step) x *= power(step);
  return x * power(e < -1000 ? -1000 : e > 1000 ? 1000 : e);
}

DG_INLINE double sum(Vec<double> v) {
  double parts[kW];
  store(parts, v);
  for (int half = kW / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) parts[i] += parts[i + half];
  return parts[0];
}

DG_INLINE double inner_product(const double* a, const double* b, int64_t count) {
  Vec<double> total[4] = {};
  int64_t j = 0;
  for (; j + 4 * kW <= count; j += 4 * kW)
    for (int v = 0; v < 4; ++v) total[v] = fma(load(a + j + v * kW), load(b + j + v * kW), total[v]);
  for (; j < count; j += kW) total[0] = fma(load(a + j), load(b + j), total[0]);
  return sum((total[0] + total[1]) + (total[2] + total[3]));
}

DG_INLINE double largest(Vec<double> v) {
  double m = v[0];
  for (int i = 1; i < kW; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

DG_INLINE double largest_magnitude(const double* x, int64_t count) {
  Vec<double> m{};
  for (int64_t j = 0; j < count; j += kW) m = max_or_second(abs(load(x + j)), m);
  return largest(m);
}

DG_INLINE void multiply_row(double* x, int64_t count, double factor) {
  const Vec<double> f = splat(factor);
  for (int64_t j = 0; j < count; j += kW) store(x + j, load(x + j) * f);
}

DG_INLINE void clear(double* x, int64_t count) {
  for (int64_t j = 0; j < count; ++j) x[j] = 0;
}

// Column c of `a`, (m, n), becomes row to[c] of `out`; where to[c] < 0 it is left out.  Rows of `out` end in zeros.
inline void transpose(const double* a, int64_t stride, int64_t m, int64_t n, double* out, int64_t out_stride,
                      const int64_t* to) {
  int64_t c = 0;
  for (; c + kW <= n; c += kW) {
    double* o[kW];
    bool all = true;
    for (int i = 0; i < kW; ++i) {
      all = all && to[c + i] >= 0;
      o[i] = out + (to[c + i] >= 0 ? to[c + i] : 0) * out_stride;
    }
    int64_t j = 0;
    for (; all && j + kW <= m; j += kW) {
      Vec<double> v[kW];
#pragma GCC unroll 8
      for (int i = 0; i < kW; ++i) v[i] = load(a + (j + i) * stride + c);
      register_transpose<double>(v);
#pragma GCC unroll 8
      for (int i = 0; i < kW; ++i) store(o[i] + j, v[i]);
    }
    for (int i = 0; i < kW; ++i)
      if (to[c + i] >= 0)
        for (int64_t k = j; k < whole_vectors(m); ++k) o[i][k] = k < m ? a[k * stride + c + i] : 0;
  }
  for (; c < n; ++c)
    if (to[c] >= 0)
      for (int64_t k = 0; k < whole_vectors(m); ++k) out[to[c] * out_stride + k] = k < m ? a[k * stride + c] : 0;
}

}  // namespace
