// A product of factors as Q D U: one more factor, and the singular values.
#pragma once

#include "common/simd.hpp"
#include "spectra/graded_factor.hpp"
#include "spectra/graded_jacobi.hpp"
#include "spectra/graded_kernels.hpp"
#include "spectra/graded_qr.hpp"
#include "spectra/graded_reflectors.hpp"
#include "spectra/graded_workspace.hpp"
#include "spectra/graded_scaling.hpp"

namespace {

// A factor whose columns differ by more than this power of two is applied in two steps, the scales of its columns
// first: F Q would bury the small ones under the large.
constexpr int64_t kColumnSpread = 6;

// out[i] = sum over j >= i of triangle[i][j] u[order[j]], J vectors of columns of four rows.
template <int J>
DG_INLINE void combine_rows(const double* triangle, int64_t t_stride, const double* u, int64_t u_stride,
                            const int64_t* order, int64_t first, int64_t last, double* const* out) {
  Vec<double> total[4][J];
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < J; ++c) total[r][c] = Vec<double>{};
  for (int64_t j = first; j < last; ++j) {
    const double* from = u + order[j] * u_stride;
    Vec<double> row[J];
    for (int c = 0; c < J; ++c) row[c] = load(from + c * kW);
    for (int r = 0; r < 4; ++r) {
      const Vec<double> s = splat(triangle[r * t_stride + j]);
      for (int c = 0; c < J; ++c) total[r][c] = fma(s, row[c], total[r][c]);
    }
  }
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < J; ++c) store(out[r] + c * kW, total[r][c]);
}

// next_u = triangle u, the triangle (rank, columns), its columns in the order of `order`.
inline void combine_u(GradedProduct* p, int64_t rank, int64_t columns, const int64_t* order, const Stop& stop) {
  const int64_t count = whole_vectors(p->sizes.width);
  alignas(64) double spare[2 * kW];
  for (int64_t i = 0; i < rank; i += 4) {
    if (columns * count > 65536 && stop()) return;
    for (int64_t j = 0; j < count;) {
      const bool pair = j + 2 * kW <= count;
      double* out[4];
      for (int r = 0; r < 4; ++r) out[r] = i + r < rank ? p->next_u + (i + r) * p->u_stride + j : spare;
      const double* rows = p->triangle + i * p->triangle_stride;
      if (pair)
        combine_rows<2>(rows, p->triangle_stride, p->u + j, p->u_stride, order, i, columns, out);
      else
        combine_rows<1>(rows, p->triangle_stride, p->u + j, p->u_stride, order, i, columns, out);
      j += pair ? 2 * kW : kW;
    }
  }
}

// Takes the panel, (live, rank of the product), with row exponents s.r and owners of its rows, for Q D: by QR it
// becomes the new Q D and part of U.  The rank is at most `rank`.  False if scales are too far apart for the numbers
// between them.
inline bool factor_panel(GradedProduct* p, int64_t live, int64_t rank, const IntegerArrays& s, const Stop& stop) {
  const int64_t old = p->rank;
  double* const reflectors = p->sizes.several ? p->reflectors : nullptr;
  const QrProblem qr{p->panel,     row_stride(old), live,           old,        s.r,
                     p->exponents, s.row_order,     s.column_order, reflectors, row_stride(p->sizes.rows),
                     p->betas,     p->vectors};
  p->rank = pivoted_qr(qr, smaller(smaller(live, old), rank), stop);
  if (p->started) {
    split_triangle(qr, p->rank, p->triangle, p->triangle_stride, p->exponents);
    combine_u(p, p->rank, old, s.column_order, stop);
    exchange(p->u, p->next_u);
  } else {
    // What orthogonal matrices stand to the right does not matter, so U may have its columns in any order.
    split_triangle(qr, p->rank, p->u, p->u_stride, p->exponents);
    p->started = true;
  }
  Vec<double> check{};
  for (int64_t i = 0; i < p->rank; ++i) {
    double* row = p->u + i * p->u_stride;
    const int64_t width = whole_vectors(p->sizes.width), size = exponent(largest_magnitude(row, width));
    if (size == kNothing) continue;
    const Vec<double> factor = splat(power(-size));
    for (int64_t j = 0; j < width; j += kW) {
      const Vec<double> x = load(row + j) * factor;
      check += x * splat(0.0);
      store(row + j, x);
    }
    p->exponents[i] += size;
  }
  p->reflections = p->sizes.several ? p->rank : 0;
  p->live = live;
  pad_reflectors(p);
  for (int64_t i = 0; i < live; ++i) p->order[i] = s.owners[s.row_order[i]];
  return sum(check) == 0;
}

// Makes the panel from the transposed factor, m rows with exponents s.rows, once Q is applied; rows of zeros are
// dropped.
inline int64_t form_panel(GradedProduct* p, int64_t m, const IntegerArrays& s) {
  const int64_t transposed_stride = row_stride(m), stride = row_stride(p->rank), count = whole_vectors(m);
  double* const tops = p->vectors;
  clear(tops, count);
  for (int64_t i = 0; i < p->rank; ++i)
    for (int64_t j = 0; j < count; j += kW)
      store(tops + j, max_or_second(abs(load(p->transposed + i * transposed_stride + j)), load(tops + j)));
  int64_t live = 0;
  for (int64_t j = 0; j < m; ++j) {
    const int64_t top = s.rows[j] == kNothing ? kNothing : exponent(tops[j]);
    s.to[j] = top == kNothing ? -1 : live;
    if (top == kNothing) continue;
    tops[live] = power(-top);
    s.r[live] = s.rows[j] + top;
    s.owners[live++] = j;
  }
  transpose(p->transposed, transposed_stride, p->rank, m, p->panel, stride, s.to);
  for (int64_t j = 0; j < live; ++j) multiply_row(p->panel + j * stride, whole_vectors(p->rank), tops[j]);
  return live;
}

// Multiplies by the scales of the columns of a factor, zero columns left out, and transposes the factor anew, in the
// order of the new Q and scaled by rows and columns.  `plain` is what `equilibrate` returned.
inline bool split_factor(GradedProduct* p, const Factor& f, int64_t used, bool plain, const IntegerArrays& s,
                         const Stop& stop) {
  form_q(p, stop);
  const int64_t q_stride = row_stride(p->rank), count = whole_vectors(p->rank);
  int64_t live = 0;
  for (int64_t i = 0; i < p->live; ++i) {
    const double* row = p->transposed + i * q_stride;
    const int64_t top = s.columns[i] == kNothing ? kNothing : exponent(largest_magnitude(row, count));
    if (top == kNothing) continue;
    const Vec<double> factor = splat(power(-top));
    for (int64_t j = 0; j < count; j += kW) store(p->panel + live * q_stride + j, load(row + j) * factor);
    s.r[live] = s.columns[i] + top;
    s.all_columns[p->order[i]] = s.columns[i];
    s.owners[live++] = p->order[i];
  }
  if (!factor_panel(p, live, used, s, stop)) return false;
  read(p, f, s.to);
  double* const scales = p->vectors;
  for (int64_t j = 0; j < whole_vectors(f.rows); ++j)
    scales[j] = j < f.rows && s.rows[j] != kNothing ? power(-s.rows[j]) : 0;
  for (int64_t i = 0; i < p->live; ++i) {
    double* row = p->transposed + i * row_stride(f.rows);
    const int64_t c = s.all_columns[p->order[i]];
    if (plain) {
      const Vec<double> factor = splat(power(-c));
      for (int64_t j = 0; j < f.rows; j += kW) store(row + j, load(row + j) * load(scales + j) * factor);
    } else {
      for (int64_t j = 0; j < f.rows; ++j)
        if (row[j] != 0) row[j] = scale(row[j], -s.rows[j] - c);
    }
  }
  return true;
}

inline bool multiply_graded(GradedProduct* p, const Factor& f, const Stop& stop) {
  const IntegerArrays s(*p);
  if (!read(p, f, s.to)) return false;
  const bool by_rows = equilibrate(p, f.rows, s.rows, s.columns);
  int64_t used = 0, low = 0, high = 0;
  for (int64_t i = 0; i < p->live; ++i)
    if (s.columns[i] != kNothing) {
      low = used ? smaller(low, s.columns[i]) : s.columns[i];
      high = used ? larger(high, s.columns[i]) : s.columns[i];
      ++used;
    }
  if (p->started && high - low > kColumnSpread) {
    if (!split_factor(p, f, used, by_rows, s, stop)) return false;
    used = p->live;
  } else {
    // While Q is the identity the scales of the columns go straight to D; else they go back where they were.
    const int64_t sign = p->started ? 1 : -1;
    for (int64_t i = 0; i < p->live; ++i) {
      if (s.columns[i] == kNothing) continue;
      if (!p->started) p->exponents[i] += s.columns[i];
      if (p->started != by_rows)
        multiply_row(p->transposed + i * row_stride(f.rows), whole_vectors(f.rows), power(sign * s.columns[i]));
    }
  }
  apply_reflectors(p, f.rows, stop);
  return factor_panel(p, form_panel(p, f.rows, s), used, s, stop);
}

// One QR of the transposed rows 2^e u, (rank, columns): a triangle takes their place, closer to diagonal.
inline void qr_of_rows(GradedProduct* p, const double* u, int64_t u_stride, int64_t columns, int64_t* rank, int64_t* e,
                       const IntegerArrays& s, const Stop& stop) {
  const int64_t stride = row_stride(*rank);
  for (int64_t j = 0; j < columns; ++j) {
    s.r[j] = 0;
    s.to[j] = j;
  }
  transpose(u, u_stride, *rank, columns, p->panel, stride, s.to);
  const QrProblem qr{p->panel,    stride,         columns, *rank, s.r,     e,
                     s.row_order, s.column_order, nullptr, 0,     nullptr, p->vectors};
  *rank = pivoted_qr(qr, smaller(*rank, columns), stop);
  split_triangle(qr, *rank, p->triangle, p->triangle_stride, e);
}

inline int64_t graded_values(GradedProduct* p, double* values, int64_t* exponents, const Stop& stop) {
  const IntegerArrays s(*p);
  if (!p->started) {
    for (int64_t i = 0; i < p->rank; ++i) {
      values[i] = 0.5;
      exponents[i] = 1;
    }
    return p->rank;
  }
  int64_t rank = p->rank;
  for (int64_t i = 0; i < rank; ++i) exponents[i] = p->exponents[i];
  qr_of_rows(p, p->u, p->u_stride, p->sizes.width, &rank, exponents, s, stop);
  qr_of_rows(p, p->triangle, p->triangle_stride, rank, &rank, exponents, s, stop);
  const JacobiRows rows{p->triangle, p->triangle_stride, rank, rank, exponents, s.row_order, p->vectors};
  jacobi_values(rows, values, stop);
  return rank;
}

}  // namespace
