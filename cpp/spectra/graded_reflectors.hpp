// Q of a product, as Householder reflectors: applied to a transposed factor, or formed.
#pragma once

#include "common/simd.hpp"
#include "spectra/graded_workspace.hpp"
#include "spectra/graded_scaling.hpp"

namespace {

// x = (1 - V T V^T) x, or with T^T where `Transposed`, for J vectors of columns of rows first <= i < last.
template <bool Transposed, int J>
DG_INLINE void reflect_columns(const double* v, int64_t v_stride, const double* t, double* x, int64_t stride,
                               int64_t first, int64_t last) {
  Vec<double> y[kBlock][J];
  for (int b = 0; b < kBlock; ++b)
    for (int c = 0; c < J; ++c) y[b][c] = Vec<double>{};
  for (int64_t i = first; i < last; ++i) {
    Vec<double> row[J];
    for (int c = 0; c < J; ++c) row[c] = load(x + i * stride + c * kW);
    for (int b = 0; b < kBlock; ++b) {
      const Vec<double> s = splat(v[b * v_stride + i]);
      for (int c = 0; c < J; ++c) y[b][c] = fma(s, row[c], y[b][c]);
    }
  }
  // T is upper triangular: in an order where each takes only those that are still as they were.
  for (int n = 0; n < kBlock; ++n) {
    const int b = Transposed ? kBlock - 1 - n : n;
    for (int c = 0; c < J; ++c) {
      Vec<double> z = splat(-t[b * kBlock + b]) * y[b][c];
      for (int l = Transposed ? 0 : b + 1; l < (Transposed ? b : kBlock); ++l)
        z = fma(splat(-t[Transposed ? l * kBlock + b : b * kBlock + l]), y[l][c], z);
      y[b][c] = z;
    }
  }
  for (int64_t i = first; i < last; ++i) {
    Vec<double> row[J];
    for (int c = 0; c < J; ++c) row[c] = load(x + i * stride + c * kW);
    for (int b = 0; b < kBlock; ++b) {
      const Vec<double> s = splat(v[b * v_stride + i]);
      for (int c = 0; c < J; ++c) row[c] = fma(s, y[b][c], row[c]);
    }
    for (int c = 0; c < J; ++c) store(x + i * stride + c * kW, row[c]);
  }
}

template <bool Transposed>
DG_INLINE void reflect(const double* v, int64_t v_stride, const double* t, double* x, int64_t stride, int64_t columns,
                       int64_t first, int64_t last) {
  int64_t j = 0;
  for (; j + 2 * kW <= columns; j += 2 * kW) reflect_columns<Transposed, 2>(v, v_stride, t, x + j, stride, first, last);
  for (; j < columns; j += kW) reflect_columns<Transposed, 1>(v, v_stride, t, x + j, stride, first, last);
}

// T of reflectors k to k + 3, whose product is 1 - V T V^T.
inline void block_factor(const GradedProduct* p, int64_t k, double* t) {
  const int64_t stride = row_stride(p->sizes.rows), first = k / kW * kW, length = whole_vectors(p->live) - first;
  const double* v = p->reflectors + k * stride + first;
  clear(t, kBlock * kBlock);
  for (int64_t b = 0; b < kBlock; ++b) {
    t[b * kBlock + b] = p->betas[k + b];
    for (int64_t l = 0; l < b; ++l) {
      const double dot = inner_product(v + l * stride, v + b * stride, length);
      for (int64_t i = 0; i <= l; ++i) t[i * kBlock + b] -= p->betas[k + b] * (t[i * kBlock + l] * dot);
    }
  }
}

// Fills up the last block of reflectors with ones that do nothing.
inline void pad_reflectors(GradedProduct* p) {
  for (int64_t k = p->reflections; k % kBlock; ++k) {
    clear(p->reflectors + k * row_stride(p->sizes.rows), whole_vectors(p->live));
    p->betas[k] = 0;
  }
}

// The transposed factor, (live, m), times Q: every reflector from the left, four at a time.
inline void apply_reflectors(GradedProduct* p, int64_t m, const Stop& stop) {
  const int64_t stride = row_stride(p->sizes.rows);
  double t[kBlock * kBlock];
  for (int64_t k = 0; k < p->reflections; k += kBlock) {
    if (m * p->live > 65536 && stop()) return;
    block_factor(p, k, t);
    reflect<true>(p->reflectors + k * stride, stride, t, p->transposed, row_stride(m), whole_vectors(m), k, p->live);
  }
}

// Q itself in place of the transposed factor, (live, rank), rows in the order of the reflectors.
inline void form_q(GradedProduct* p, const Stop& stop) {
  const int64_t v_stride = row_stride(p->sizes.rows), stride = row_stride(p->rank), count = whole_vectors(p->rank);
  double t[kBlock * kBlock];
  for (int64_t i = 0; i < p->live; ++i) {
    clear(p->transposed + i * stride, count);
    if (i < p->rank) p->transposed[i * stride + i] = 1;
  }
  // From the last block on, so that only what is no longer the identity is touched.
  for (int64_t k = (p->reflections - 1) / kBlock * kBlock; k >= 0 && p->reflections; k -= kBlock) {
    if (p->rank * p->live > 65536 && stop()) return;
    block_factor(p, k, t);
    const int64_t first = k / kW * kW;
    reflect<false>(p->reflectors + k * v_stride, v_stride, t, p->transposed + first, stride, count - first, k, p->live);
  }
}

}  // namespace
