// One-sided Jacobi on rows with scales beside them: the singular values of 2^e[i] u[i][j].
#pragma once

#include "common/simd.hpp"
#include "spectra/graded_kernels.hpp"
#include "spectra/graded_scaling.hpp"

namespace {

using depthgauge::Stop;

constexpr int kMaxSweeps = 40;

// Brings the row to a largest magnitude in [1/2, 1) and returns its sum of squares.
DG_INLINE double normalize_row(double* u, int64_t count, int64_t* e) {
  const int64_t size = exponent(largest_magnitude(u, count));
  if (size != 0 && size != kNothing) {
    multiply_row(u, count, power(-size));
    *e += size;
  }
  return inner_product(u, u, count);
}

struct JacobiRows {
  double* u;
  int64_t stride;
  int64_t rows, columns;
  int64_t* e;
  int64_t* order;   // (rows) workspace: row i of the sweep is row order[i] of `u`
  double* squares;  // (rows) workspace
};

// Makes rows p and q orthogonal, where row p is the larger.  With ratio = 2^(e[q] - e[p]) the tangent of the angle is
// ratio * t; t stays in range where the ratio does not, and only its square multiplies numbers.
DG_INLINE void rotate(const JacobiRows& a, int64_t p, int64_t q, double dot) {
  const int64_t gap = a.e[q] - a.e[p], count = whole_vectors(a.columns);
  const double ratio2 = gap < -500 ? 0 : power(2 * gap);
  const double zeta = (ratio2 * a.squares[q] - a.squares[p]) / (2 * dot);
  const double t = (zeta < 0 ? -1 : 1) / ((zeta < 0 ? -zeta : zeta) + __builtin_sqrt(ratio2 + zeta * zeta));
  const double cosine = 1 / __builtin_sqrt(1 + ratio2 * t * t);
  const Vec<double> c = splat(cosine), s = splat(cosine * t), r = splat(-(cosine * (ratio2 * t)));
  double *u = a.u + p * a.stride, *v = a.u + q * a.stride;
  Vec<double> sum_u{}, sum_v{};
  for (int64_t j = 0; j < count; j += kW) {
    const Vec<double> x = load(u + j), y = load(v + j);
    const Vec<double> f = fma(c, x, r * y), g = fma(c, y, s * x);
    store(u + j, f);
    store(v + j, g);
    sum_u = fma(f, f, sum_u);
    sum_v = fma(g, g, sum_v);
  }
  a.squares[p] = sum(sum_u);
  a.squares[q] = sum(sum_v);
  const int64_t pair[2] = {p, q};
  for (const int64_t i : pair)
    if (!(a.squares[i] >= 0x1p-20 && a.squares[i] <= 0x1p20))
      a.squares[i] = normalize_row(a.u + i * a.stride, count, a.e + i);
}

// Values are values * 2^e, descending; NaN past the cap.  Rows must not be zero.
inline void jacobi_values(const JacobiRows& a, double* values, const Stop& stop) {
  const int64_t n = a.rows, count = whole_vectors(a.columns);
  for (int64_t i = 0; i < n; ++i) {
    a.order[i] = i;
    a.squares[i] = normalize_row(a.u + i * a.stride, count, a.e + i);
  }
  const double tolerance = 0x1p-52 * __builtin_sqrt(static_cast<double>(a.columns));
  const double tolerance2 = tolerance * tolerance;
  bool converged = false;
  for (int round = 0; round < kMaxSweeps && !converged; ++round) {
    converged = true;
    for (int64_t i = 0; i < n - 1; ++i) {
      if (n * count > 16384 && stop()) return;
      for (int64_t j = i + 1; j < n; ++j) {
        int64_t p = a.order[i], q = a.order[j];
        // The larger of the two first, so that the values come out sorted.
        const int64_t gap = a.e[q] - a.e[p];
        if (gap > 500 || (gap > -500 && a.squares[q] * power(2 * gap) > a.squares[p])) {
          a.order[i] = q;
          a.order[j] = p;
          const int64_t t = p;
          p = q;
          q = t;
        }
        const double dot = inner_product(a.u + p * a.stride, a.u + q * a.stride, count);
        if (dot * dot <= tolerance2 * (a.squares[p] * a.squares[q])) continue;
        converged = false;
        rotate(a, p, q, dot);
      }
    }
    if (stop()) return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const double norm = __builtin_sqrt(a.squares[i]);
    const int64_t size = exponent(norm);
    values[i] = converged ? norm * power(-size) : __builtin_nan("");
    a.e[i] += size;
  }
  // By insertion, as they are all but sorted.
  for (int64_t i = 1; i < n; ++i) {
    const double value = values[i];
    const int64_t e = a.e[i];
    int64_t j = i;
    for (; j > 0 && (a.e[j - 1] < e || (a.e[j - 1] == e && values[j - 1] < value)); --j) {
      values[j] = values[j - 1];
      a.e[j] = a.e[j - 1];
    }
    values[j] = value;
    a.e[j] = e;
  }
}

}  // namespace
