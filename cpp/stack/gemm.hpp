// Products of a weight matrix with one group of examples, and the packing of weights for them.
//
// Examples sit in the lanes of a vector and the weights are broadcast, so that forward and reverse mode read the
// same row-major matrix and no product needs a transpose.  Every lane accumulates over the inner index in order,
// one fused step a term, whatever the blocking: the bits do not depend on it.
#pragma once

#include "common/simd.hpp"

namespace {

// Outputs of one microkernel call: as many as keep kRows * kVectors accumulators, kVectors operands and a
// broadcast in registers.
#if defined(__AVX512F__)
constexpr int kRows = 16;
#elif defined(__AVX2__)
constexpr int kRows = 6;
#elif defined(__aarch64__)
constexpr int kRows = 5;
#else
constexpr int kRows = 2;
#endif

// The inner index is split so that this many rows of a group stay in the first-level cache.
constexpr int64_t kInner = 256;

DG_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// c[r] (+)= sum_k w(r, k) x[k] for r < R, with w(r, k) = w[r * across + k * along].
template <class T, int R, bool Accumulate>
DG_INLINE void microkernel(const T* w, int64_t across, int64_t along, const T* x, int64_t inner, T* c) {
  Vec<T> acc[R][kVectors];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v)
      acc[r][v] = Accumulate ? load(c + r * kLanes<T> + v * kWidth<T>) : Vec<T>{};
  for (int64_t k = 0; k < inner; ++k) {
    Vec<T> xv[kVectors];
    for (int v = 0; v < kVectors; ++v) xv[v] = load(x + k * kLanes<T> + v * kWidth<T>);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec<T> b = splat(w[r * across]);
      for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(b, xv[v], acc[r][v]);
    }
    w += along;
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v) store(c + r * kLanes<T> + v * kWidth<T>, acc[r][v]);
}

// The last, narrower block of outputs.
template <class T, int R, bool Accumulate>
void remainder(int64_t rows, const T* w, int64_t across, int64_t along, const T* x, int64_t inner, T* c) {
  if constexpr (R > 0) {
    if (rows == R)
      microkernel<T, R, Accumulate>(w, across, along, x, inner, c);
    else
      remainder<T, R - 1, Accumulate>(rows, w, across, along, x, inner, c);
  }
}

// Weights packed for columns: panel p holds columns p * kRows ... of the block, inner index by inner index, so that
// the kernel reads them as one stream.
template <class T>
DG_INLINE int64_t panel_stride(int64_t inner) {
  return inner * kRows + kLanes<T>;
}

template <class T>
DG_INLINE int64_t packed_size(int64_t inner, int64_t outputs) {
  return (outputs + kRows - 1) / kRows * panel_stride<T>(inner);
}

// c[j] (+)= sum_k x[k] W[k, j] over one packed block of W.
template <class T, bool Accumulate>
void multiply_columns_block(const T* packed, int64_t stride, int64_t outputs, const T* x, int64_t inner, T* c) {
  int64_t j = 0;
  for (; j + kRows <= outputs; j += kRows, packed += stride)
    microkernel<T, kRows, Accumulate>(packed, 1, kRows, x, inner, c + j * kLanes<T>);
  if (j < outputs)
    remainder<T, kRows - 1, Accumulate>(outputs - j, packed, 1, kRows, x, inner, c + j * kLanes<T>);
}

template <class T>
void multiply_columns(const T* packed, int64_t inner, int64_t outputs, const T* x, T* c, bool accumulate) {
  const int64_t stride = panel_stride<T>(inner);
  for (int64_t k = 0; k < inner || k == 0; k += kInner, accumulate = true) {
    const int64_t n = smaller(kInner, inner - k);
    if (accumulate)
      multiply_columns_block<T, true>(packed + k * kRows, stride, outputs, x + k * kLanes<T>, n, c);
    else
      multiply_columns_block<T, false>(packed + k * kRows, stride, outputs, x + k * kLanes<T>, n, c);
  }
}

// c[i] (+)= sum_k W[i, k] x[k] for rows as they lie, `stride` apart.
template <class T, bool Accumulate>
void multiply_rows_block(const T* w, int64_t stride, int64_t outputs, const T* x, int64_t inner, T* c) {
  int64_t i = 0;
  for (; i + kRows <= outputs; i += kRows)
    microkernel<T, kRows, Accumulate>(w + i * stride, stride, 1, x, inner, c + i * kLanes<T>);
  if (i < outputs)
    remainder<T, kRows - 1, Accumulate>(outputs - i, w + i * stride, stride, 1, x, inner, c + i * kLanes<T>);
}

template <class T>
void multiply_rows(const T* w, int64_t stride, int64_t inner, int64_t outputs, const T* x, T* c, bool accumulate) {
  for (int64_t k = 0; k < inner || k == 0; k += kInner, accumulate = true) {
    const int64_t n = smaller(kInner, inner - k);
    if (accumulate)
      multiply_rows_block<T, true>(w + k, stride, outputs, x + k * kLanes<T>, n, c);
    else
      multiply_rows_block<T, false>(w + k, stride, outputs, x + k * kLanes<T>, n, c);
  }
}

// Copies columns [0, outputs) of a row-major block into panels.  Whole vectors are stored where a panel is narrower
// than a vector's multiple; what spills is overwritten by the next row, or lands in the panel's padding.
template <class T>
void pack_columns(const T* w, int64_t stride, int64_t inner, int64_t outputs, T* packed) {
  constexpr int spill = (kRows + kWidth<T> - 1) / kWidth<T> * kWidth<T>;
  const int64_t panel = panel_stride<T>(inner);
  for (int64_t k = 0; k < inner; ++k) {
    const T* row = w + k * stride;
    T* out = packed + k * kRows;
    int64_t j = 0;
    for (; j + spill <= outputs; j += kRows, out += panel)
      for (int i = 0; i < spill; i += kWidth<T>) store(out + i, load(row + j + i));
    for (; j < outputs; j += kRows, out += panel)
      for (int64_t i = 0; i < smaller(kRows, outputs - j); ++i) out[i] = row[j + i];
  }
}

// Copies a block of rows to a stride that does not alias in the caches.
template <class T>
void pack_rows(const T* w, int64_t stride, int64_t rows, int64_t inner, T* packed, int64_t packed_stride) {
  for (int64_t i = 0; i < rows; ++i) {
    const T* from = w + i * stride;
    T* to = packed + i * packed_stride;
    int64_t k = 0;
    for (; k + kWidth<T> <= inner; k += kWidth<T>) store(to + k, load(from + k));
    for (; k < inner; ++k) to[k] = from[k];
  }
}

}  // namespace
