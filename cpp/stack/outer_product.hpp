// Weight gradients: the product of two activations, summed over examples.
//
// With examples in the lanes this is the awkward product.  Its right factor was turned into panels where a vector
// holds consecutive features of one example; the left one is broadcast example by example as it lies.  Examples are
// added in order, so the sum depends on neither the threads nor the blocking.
#pragma once

#include "stack/gemm.hpp"

namespace {

using depthgauge::stack::OuterProduct;

// Panels a block: their right factors stay in the second-level cache while the rows pass.
constexpr int64_t kPanels = 16;

// Rows k ... k + R of panels [first, last), to `destination`, which is at row k.
template <class T, int R>
void outer_rows(const OuterProduct<T>& p, int64_t k, int64_t first, int64_t last, T* destination) {
  const Vec<T> factor = splat(p.factor);
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t j = panel * kLanes<T>;
    // The gradients are written once and have not been read: without this the stores would wait for memory.
    for (int r = 0; r < R; ++r) __builtin_prefetch(destination + r * p.stride + j + kLanes<T>, 1, 3);
    Vec<T> acc[R][kVectors] = {};
    const T* right = p.right + panel * p.panel_stride;
    for (int64_t g = 0; g < p.groups; ++g, right += kLanes<T> * kLanes<T>) {
      const T* left = p.left[g] + k * kLanes<T>;
      add_rows_times(left, kLanes<T>, right, p.examples[g], acc);
    }
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
void outer_remainder(const OuterProduct<T>& p, int64_t k, int64_t rows, int64_t first, int64_t last, T* destination) {
  if constexpr (R > 0) {
    if (rows == R)
      outer_rows<T, R>(p, k, first, last, destination);
    else
      outer_remainder<T, R - 1>(p, k, rows, first, last, destination);
  }
}

template <class T>
void outer_product(const OuterProduct<T>& p, int64_t first, int64_t last) {
  const int64_t panels = (p.columns + kLanes<T> - 1) / kLanes<T>;
  for (int64_t panel = 0; panel < panels; panel += kPanels) {
    const int64_t end = smaller(panel + kPanels, panels);
    T* destination = p.destination;
    int64_t k = first;
    for (; k + kRows <= last; k += kRows, destination += kRows * p.stride)
      outer_rows<T, kRows>(p, k, panel, end, destination);
    outer_remainder<T, kRows - 1>(p, k, last - k, panel, end, destination);
  }
}

}  // namespace
