// Weight gradients: the product of two activations, summed over examples.
//
// With examples in the lanes this is the awkward product.  Its right factor was turned into panels where a vector
// holds consecutive features of one example; the left one is broadcast example by example as it lies.  Examples are
// added in order, so the sum depends on neither the threads nor the blocking.
#pragma once

#include "stack/gemm.hpp"

namespace {

using depthgauge::stack::OuterProduct;

template <class T, int R>
void outer_rows(const OuterProduct<T>& p, int64_t k, T* destination) {
  for (int64_t j = 0, panel = 0; j < p.columns; j += kLanes<T>, ++panel) {
    Vec<T> acc[R][kVectors] = {};
    const T* right = p.right + panel * p.panel_stride;
    for (int64_t g = 0; g < p.groups; ++g, right += kLanes<T> * kLanes<T>) {
      const T* left = p.left[g] + k * kLanes<T>;
      const int examples = p.examples[g];
      for (int b = 0; b < examples; ++b) {
        Vec<T> y[kVectors];
        for (int v = 0; v < kVectors; ++v) y[v] = load(right + b * kLanes<T> + v * kWidth<T>);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const Vec<T> x = splat(left[r * kLanes<T> + b]);
          for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(x, y[v], acc[r][v]);
        }
      }
    }
    const Vec<T> factor = splat(p.factor);
    for (int r = 0; r < R; ++r) {
      T* out = destination + r * p.stride + j;
      if (j + kLanes<T> <= p.columns) {
        for (int v = 0; v < kVectors; ++v) store(out + v * kWidth<T>, factor * acc[r][v]);
      } else {
        T rest[kLanes<T>];
        for (int v = 0; v < kVectors; ++v) store(rest + v * kWidth<T>, factor * acc[r][v]);
        for (int64_t i = 0; i < p.columns - j; ++i) out[i] = rest[i];
      }
    }
  }
}

template <class T, int R>
void outer_remainder(const OuterProduct<T>& p, int64_t k, int64_t rows, T* destination) {
  if constexpr (R > 0) {
    if (rows == R)
      outer_rows<T, R>(p, k, destination);
    else
      outer_remainder<T, R - 1>(p, k, rows, destination);
  }
}

template <class T>
void outer_product(const OuterProduct<T>& p, int64_t first, int64_t last) {
  int64_t k = first;
  T* destination = p.destination;
  for (; k + kRows <= last; k += kRows, destination += kRows * p.stride) outer_rows<T, kRows>(p, k, destination);
  outer_remainder<T, kRows - 1>(p, k, last - k, destination);
}

}  // namespace
