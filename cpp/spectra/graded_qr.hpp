// QR of a matrix with scales of its rows and columns beside it, with pivoting of both.
//
// Householder QR is backward stable row by row where columns are pivoted by norm and large rows come first, and scales
// of columns matter only to the choice of the pivot.  Entries stay in units of their own row and column throughout.
#pragma once

#include "common/simd.hpp"
#include "spectra/graded_kernels.hpp"
#include "spectra/graded_scaling.hpp"

namespace {

using depthgauge::Stop;

// A column is exchanged for one whose squared norm is twice as large, a row for one whose entry is 4 times as large.
constexpr double kColumnGain = 1;
constexpr double kRowGain = 4;
// Rows this many powers of two below the largest get new scales before they are factored.
constexpr int64_t kRescaleRows = 100;
// Squared norms below this are computed anew with scales of their own.
constexpr double kTinySquare = 0x1p-900;

// 2^r[i] b[i][j] 2^d[j], (m, n), rows padded with zeros to whole vectors; all is overwritten.
struct QrProblem {
  double* b;
  int64_t stride;
  int64_t m, n;
  int64_t* r;
  int64_t* d;
  int64_t* row_order;     // (m) out: the row that each row of the result was
  int64_t* column_order;  // (n) out
  double* reflectors;     // (steps) rows of `reflector_stride`, out, entries as in row_order; or null
  int64_t reflector_stride;
  double* betas;
  double* vectors;  // qr_workspace(m, n) doubles
};

DG_INLINE int64_t qr_workspace(int64_t m, int64_t n) { return 4 * row_stride(m) + 2 * row_stride(n); }

template <class X>
DG_INLINE void exchange(X& a, X& b) {
  const X t = a;
  a = b;
  b = t;
}

// norms[j] = sum over rows of (scales[i] b[i][j])^2, with `Update` after b[i][j] -= own[i] w[j].
template <int J, bool Update>
DG_INLINE void sweep_columns(double* b, int64_t stride, int64_t rows, const double* own, const double* scales,
                             const double* w, double* norms) {
  Vec<double> factor[J], total[J];
  for (int v = 0; v < J; ++v) {
    factor[v] = Update ? load(w + v * kW) : Vec<double>{};
    total[v] = Vec<double>{};
  }
  for (int64_t i = 0; i < rows; ++i, b += stride) {
    const Vec<double> s = splat(scales[i]), o = splat(Update ? -own[i] : 0.0);
    for (int v = 0; v < J; ++v) {
      Vec<double> x = load(b + v * kW);
      if (Update) {
        x = fma(o, factor[v], x);
        store(b + v * kW, x);
      }
      // Entries may outgrow the unit of their row, but columns never grow.
      x *= s;
      total[v] = fma(x, x, total[v]);
    }
  }
  for (int v = 0; v < J; ++v) store(norms + v * kW, total[v]);
}

template <bool Update>
DG_INLINE void sweep(double* b, int64_t stride, int64_t rows, int64_t columns, const double* own, const double* scales,
                     const double* w, double* norms) {
  int64_t j = 0;
  for (; j + 4 * kW <= columns; j += 4 * kW)
    sweep_columns<4, Update>(b + j, stride, rows, own, scales, w + j, norms + j);
  for (; j < columns; j += kW) sweep_columns<1, Update>(b + j, stride, rows, own, scales, w + j, norms + j);
}

// w[j] = factor * sum over rows of weights[i] b[i][j].
template <int J>
DG_INLINE void combine_columns(const double* b, int64_t stride, int64_t rows, const double* weights, double factor,
                               double* w) {
  Vec<double> even[J], odd[J];
  for (int v = 0; v < J; ++v) even[v] = odd[v] = Vec<double>{};
  int64_t i = 0;
  for (; i + 2 <= rows; i += 2, b += 2 * stride) {
    const Vec<double> s = splat(weights[i]), t = splat(weights[i + 1]);
    for (int v = 0; v < J; ++v) {
      even[v] = fma(s, load(b + v * kW), even[v]);
      odd[v] = fma(t, load(b + stride + v * kW), odd[v]);
    }
  }
  if (i < rows)
    for (int v = 0; v < J; ++v) even[v] = fma(splat(weights[i]), load(b + v * kW), even[v]);
  for (int v = 0; v < J; ++v) store(w + v * kW, (even[v] + odd[v]) * splat(factor));
}

DG_INLINE void combine(const double* b, int64_t stride, int64_t rows, int64_t columns, const double* weights,
                       double factor, double* w) {
  int64_t j = 0;
  for (; j + 4 * kW <= columns; j += 4 * kW) combine_columns<4>(b + j, stride, rows, weights, factor, w + j);
  for (; j < columns; j += kW) combine_columns<1>(b + j, stride, rows, weights, factor, w + j);
}

// What orders the columns by norm, about the log2 of its square, whatever the range; -inf for zeros.
inline double column_size(const QrProblem& p, int64_t k, int64_t j) {
  int64_t top = kNothing;
  for (int64_t i = k; i < p.m; ++i) {
    const double x = p.b[i * p.stride + j];
    if (x != 0 && exponent(x) + p.r[i] > top) top = exponent(x) + p.r[i];
  }
  if (top == kNothing) return -__builtin_inf();
  double total = 0;
  for (int64_t i = k; i < p.m; ++i) {
    const double x = scale(p.b[i * p.stride + j], p.r[i] - top);
    total += x * x;
  }
  return static_cast<double>(2 * (top + p.d[j])) + rough_log2(total);
}

// Brings the largest entry of each row from k on near one again, and returns the largest scale of a row: entries may
// have outgrown the unit of their row where the large ones that were above it are gone.
inline int64_t normalize_rows(const QrProblem& p, int64_t k) {
  int64_t highest = kNothing;
  for (int64_t i = k; i < p.m; ++i) {
    double* row = p.b + i * p.stride;
    int64_t size = kNothing;
    for (int64_t j = k; j < p.n; ++j) size = exponent(row[j]) > size ? exponent(row[j]) : size;
    if (size == kNothing) continue;
    for (int64_t j = k; j < p.n; ++j) row[j] = scale(row[j], -size);
    p.r[i] += size;
    highest = p.r[i] > highest ? p.r[i] : highest;
  }
  return highest;
}

// Vectors of the step at hand, and the scales that squared norms of columns are in.
struct QrStep {
  DG_INLINE explicit QrStep(const QrProblem& p)
      : x(p.vectors),
        own(x + row_stride(p.m)),
        weights(own + row_stride(p.m)),
        scales(weights + row_stride(p.m)),
        norms(scales + row_stride(p.m)),
        w(norms + row_stride(p.n)) {}

  double *x, *own;  // the pivot column, in units of 2^unit and in those of its rows
  double* weights;  // the reflector, in units that multiply rows of b
  double* scales;   // 2^(r - top)
  double *norms, *w;
  int64_t top = 0;  // the largest exponent of a row when the scales were made
  int64_t unit = 0;
  bool scaled = false;
};

// Keeps squared norms of columns from k on in range: makes new scales at first, and where the rows have become small.
DG_INLINE void rescale(const QrProblem& p, QrStep& s, int64_t k) {
  const int64_t first = k / kW * kW;
  int64_t highest = kNothing;
  for (int64_t i = k; i < p.m; ++i) highest = p.r[i] > highest ? p.r[i] : highest;
  if (s.scaled && highest >= s.top - kRescaleRows) return;
  if (s.scaled) highest = normalize_rows(p, k);
  s.scaled = true;
  s.top = highest;
  for (int64_t i = k; i < p.m; ++i) s.scales[i] = power(p.r[i] - s.top);
  sweep<false>(p.b + k * p.stride + first, p.stride, p.m - k, whole_vectors(p.n) - first, s.own, s.scales + k,
               s.w + first, s.norms + first);
}

// Brings the column of largest norm to place k, where it is worth it; false if only zeros are left.
DG_INLINE bool pivot_columns(const QrProblem& p, const QrStep& s, int64_t k) {
  int64_t best = k;
  double here = 0, most = -__builtin_inf();
  for (int64_t j = k; j < p.n; ++j) {
    const double size = s.norms[j] < kTinySquare ? column_size(p, k, j)
                                                 : static_cast<double>(2 * (s.top + p.d[j])) + rough_log2(s.norms[j]);
    if (j == k) here = size;
    if (!(size <= most)) {  // or NaN, which is to spread
      most = size;
      best = j;
    }
  }
  if (most == -__builtin_inf()) return false;
  if (most > here + kColumnGain) {
    for (int64_t i = 0; i < p.m; ++i) exchange(p.b[i * p.stride + k], p.b[i * p.stride + best]);
    exchange(p.d[k], p.d[best]);
    exchange(p.column_order[k], p.column_order[best]);
  }
  return true;
}

// The entry of largest magnitude: its row, and its size.
struct Peak {
  DG_INLINE void include(int64_t i, double x) {
    const double magnitude = x < 0 ? -x : x;
    if (magnitude > size) {
      size = magnitude;
      row = i;
    }
  }

  int64_t row;
  double size = 0;
};

// The pivot column in units of 2^unit, and its largest entry.
DG_INLINE Peak take_column(const QrProblem& p, QrStep& s, int64_t k) {
  Peak peak{k};
  s.unit = s.top;
  for (int64_t i = k; i < p.m; ++i) {
    s.own[i] = p.b[i * p.stride + k];
    s.x[i] = s.own[i] * s.scales[i];
    peak.include(i, s.x[i]);
  }
  if (peak.size >= 0x1p-400) return peak;
  s.unit = kNothing;
  for (int64_t i = k; i < p.m; ++i)
    if (s.own[i] != 0 && exponent(s.own[i]) + p.r[i] > s.unit) s.unit = exponent(s.own[i]) + p.r[i];
  peak = {k};
  for (int64_t i = k; i < p.m; ++i) {
    s.x[i] = scale(s.own[i], p.r[i] - s.unit);
    peak.include(i, s.x[i]);
  }
  return peak;
}

// Rows k and `other`, with all that belongs to them.
DG_INLINE void exchange_rows(const QrProblem& p, const QrStep& s, int64_t k, int64_t other) {
  const int64_t ends = whole_vectors(p.n);
  double *a = p.b + k * p.stride, *c = p.b + other * p.stride;
  for (int64_t j = k / kW * kW; j < ends; j += kW) {
    const Vec<double> t = load(a + j);
    store(a + j, load(c + j));
    store(c + j, t);
  }
  double* const beside[] = {s.x, s.own, s.scales};
  for (double* v : beside) exchange(v[k], v[other]);
  exchange(p.r[k], p.r[other]);
  exchange(p.row_order[k], p.row_order[other]);
  if (p.reflectors)
    for (int64_t i = 0; i < k; ++i)
      exchange(p.reflectors[i * p.reflector_stride + k], p.reflectors[i * p.reflector_stride + other]);
}

// The reflector 1 - beta x x' of the pivot column, and what it leaves of that.
struct Reflector {
  double beta, sigma;
};

DG_INLINE Reflector make_reflector(const QrProblem& p, const QrStep& s, int64_t k) {
  const int64_t m = p.m;
  double* const x = s.x;
  double total = 0;
  for (int64_t i = k; i < m; ++i) total += x[i] * x[i];
  const double norm = __builtin_sqrt(total), sigma = x[k] < 0 ? norm : -norm;
  x[k] -= sigma;
  const double beta = -1 / (sigma * x[k]);
  s.own[k] = scale(x[k], s.unit - p.r[k]);
  if (s.unit == s.top) {
    for (int64_t i = k; i < m; ++i) s.weights[i] = x[i] * s.scales[i];
  } else {
    for (int64_t i = k; i < m; ++i) {
      const int64_t e = p.r[i] - s.unit;
      s.weights[i] = x[i] == 0 ? 0 : scale(x[i], e < 1000 ? e : 1000);
    }
  }
  if (p.reflectors) {
    double* v = p.reflectors + k * p.reflector_stride;
    clear(v, k);
    for (int64_t i = k; i < whole_vectors(m); ++i) v[i] = i < m ? x[i] : 0;
    p.betas[k] = beta;
  }
  return {beta, sigma};
}

// Applies the reflector to the columns from k on, and finds the norms that are left of them.
DG_INLINE void apply_reflector(const QrProblem& p, const QrStep& s, int64_t k, const Reflector& reflector) {
  const int64_t first = k / kW * kW, ends = whole_vectors(p.n);
  double* row = p.b + k * p.stride;
  combine(row + first, p.stride, p.m - k, ends - first, s.weights + k, reflector.beta, s.w + first);
  // Left of the diagonal nothing changes, w being zero there; those entries count no more.
  for (int64_t j = first; j <= k; ++j) s.w[j] = 0;
  for (int64_t j = first; j < ends; j += kW) store(row + j, fma(splat(-s.own[k]), load(s.w + j), load(row + j)));
  row[k] = scale(reflector.sigma, s.unit - p.r[k]);
  sweep<true>(row + p.stride + first, p.stride, p.m - k - 1, ends - first, s.own + k + 1, s.scales + k + 1, s.w + first,
              s.norms + first);
}

// Leaves R in rows of `b`, in units of r and d, and returns how many rows it has: `steps`, or fewer where only zeros
// were left.  Left of the diagonal is no zero, but what is no part of R.
inline int64_t pivoted_qr(const QrProblem& p, int64_t steps, const Stop& stop) {
  QrStep s(p);
  for (int64_t i = 0; i < p.m; ++i) p.row_order[i] = i;
  for (int64_t j = 0; j < p.n; ++j) p.column_order[j] = j;
  clear(s.w, whole_vectors(p.n));
  for (int64_t k = 0; k < steps; ++k) {
    if ((k % 16 == 0 || p.m * p.n > 65536) && stop()) return k;
    rescale(p, s, k);
    if (!pivot_columns(p, s, k)) return k;
    const Peak peak = take_column(p, s, k);
    if (peak.size > kRowGain * (s.x[k] < 0 ? -s.x[k] : s.x[k])) exchange_rows(p, s, k, peak.row);
    apply_reflector(p, s, k, make_reflector(p, s, k));
  }
  return steps;
}

// R of pivoted_qr, (rank, n), as 2^exponents times a triangle with entries of at most about 1; exponents may be those
// of the problem's d, whose place they take.
inline void split_triangle(const QrProblem& p, int64_t rank, double* triangle, int64_t stride, int64_t* exponents) {
  for (int64_t i = 0; i < rank; ++i) {
    const double* row = p.b + i * p.stride;
    double* out = triangle + i * stride;
    const int64_t size = exponent(row[i]), shift = p.d[i] + size;
    clear(out, i);
    // Columns to the right have smaller scales, most of them, or entries that make up for it.
    for (int64_t j = i; j < p.n; ++j) {
      const int64_t e = p.d[j] - shift;
      out[j] = e > 1000 ? scale(row[j], e) : row[j] * power(e < -1000 ? -1100 : e);
    }
    for (int64_t j = p.n; j < whole_vectors(p.n); ++j) out[j] = 0;
    exponents[i] = shift + p.r[i];
  }
}

}  // namespace
