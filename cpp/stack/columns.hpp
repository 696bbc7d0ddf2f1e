// The product with the columns of a weight matrix, for groups of examples or for a small batch.
#pragma once

#include "stack/gemm.hpp"

namespace {

// Examples, of all groups together, up to which the product is with the weights as they lie: a group costs as much
// whether it is full or not, and packing as much as several examples.
constexpr int kSmallBatch = 4;

// Rows of weights a step, which are read in parallel.
constexpr int kStepRows = 8;

// sums[j] += sum_k x[k * kLanes] w[k * stride + j] for k < N.
template <class T, int N>
DG_INLINE void add_rows(const T* w, int64_t stride, const T* x, int64_t outputs, T* sums) {
  Vec<T> factor[N];
  for (int k = 0; k < N; ++k) factor[k] = splat(x[k * kLanes<T>]);
  int64_t j = 0;
  for (; j + kWidth<T> <= outputs; j += kWidth<T>) {
    Vec<T> s = load(sums + j);
#pragma GCC unroll 8
    for (int k = 0; k < N; ++k) s = fma(load(w + k * stride + j), factor[k], s);
    store(sums + j, s);
  }
  if (j == outputs) return;
  Vec<T> s = load(sums + j);
  for (int k = 0; k < N; ++k) {
    T rest[kWidth<T>] = {};
    for (int64_t i = j; i < outputs; ++i) rest[i - j] = w[k * stride + i];
    s = fma(load(rest), factor[k], s);
  }
  store(sums + j, s);
}

// Memory for the sums of one example, in whole vectors.
template <class T>
DG_INLINE int64_t sums_size(int64_t outputs) {
  return (outputs + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

// c[j] (+)= sum_k x[k] W[k, j] for the first `examples` lanes of a group; the last one is repeated in the other lanes.
// Every sum is that of `multiply_group`, term by term.
template <class T>
void multiply_small_batch(const T* w, int64_t stride, int64_t inner, int64_t outputs, const T* x, int examples, T* c,
                          bool accumulate, T* sums) {
  const int64_t size = sums_size<T>(outputs);
  for (int e = 0; e < examples; ++e)
    for (int64_t j = 0; j < size; ++j) sums[e * size + j] = accumulate && j < outputs ? c[j * kLanes<T> + e] : T(0);
  int64_t k = 0;
  for (; k + kStepRows <= inner; k += kStepRows)
    for (int e = 0; e < examples; ++e)
      add_rows<T, kStepRows>(w + k * stride, stride, x + k * kLanes<T> + e, outputs, sums + e * size);
  for (; k < inner; ++k)
    for (int e = 0; e < examples; ++e)
      add_rows<T, 1>(w + k * stride, stride, x + k * kLanes<T> + e, outputs, sums + e * size);
  for (int64_t j = 0; j < outputs; ++j) {
    store_row(c + j * kLanes<T>, splat_row(sums[(examples - 1) * size + j]));
    for (int e = 0; e + 1 < examples; ++e) c[j * kLanes<T> + e] = sums[e * size + j];
  }
}

// A block of columns of a weight matrix, ready to be multiplied with.
template <class T>
class Columns {
 public:
  // Packs into `memory`; or, for a small batch, multiplies with the weights as they lie and has its sums there.
  DG_INLINE Columns(const T* w, int64_t stride, int64_t inner, int64_t outputs, bool small_batch, T* memory)
      : w_(w), stride_(stride), inner_(inner), outputs_(outputs), memory_(memory), small_batch_(small_batch) {
    if (w && !small_batch) pack_columns(w, stride, inner, outputs, memory);
  }

  // c (+)= x W for a group with that many examples.
  DG_INLINE void multiply(const T* x, int examples, T* c, bool accumulate, Prefetch& prefetch) const {
    if (small_batch_)
      multiply_small_batch(w_, stride_, inner_, outputs_, x, examples, c, accumulate, memory_);
    else
      multiply_group<T, Layout::panels>(memory_, panel_stride<T>(inner_), inner_, outputs_, x, c, accumulate, prefetch);
  }

 private:
  const T* w_;
  int64_t stride_, inner_, outputs_;
  T* memory_;
  bool small_batch_;
};

}  // namespace
