// Weight gradients: the product of two activations, summed over examples.
//
// With examples in the lanes this is the awkward product.  Its right factor was turned into panels where a vector
// holds consecutive features of one example; rows of the left one are packed here, so that both are read as one
// stream.  Examples are added in order, so the sum depends on neither the threads nor the blocking.
#pragma once

#include "stack/gemm.hpp"

namespace {

using depthgauge::stack::kOuterRows;
using depthgauge::stack::OuterProduct;

// Groups at a time: their part of a panel and of a block of rows stay in the first-level cache.
template <class T>
constexpr int64_t kGroupsAtOnce = 256 / kLanes<T>;
// Panels a block: they stay in the second-level cache while the packed rows pass.
constexpr int64_t kPanels = 16;
// Rows that are packed at a time, a multiple of the kernel's.
constexpr int64_t kPackedRows = (kOuterRows + kRows - 1) / kRows * kRows;

// Elements of scratch that an outer product needs.
template <class T>
DG_INLINE int64_t outer_scratch() {
  return kPackedRows * kGroupsAtOnce<T> * kLanes<T>;
}

// Rows [k, k + rows) of groups [g0, g1) as [block of kRows][group][example][row of the block]; rows beyond are zero.
template <class T>
void pack_left(const OuterProduct<T>& p, int64_t k, int64_t rows, int64_t g0, int64_t g1, T* packed) {
  for (int64_t r0 = 0; r0 < rows; r0 += kRows)
    for (int64_t g = g0; g < g1; ++g, packed += kLanes<T> * kRows) {
      const T* left = p.left[g] + (k + r0) * kLanes<T>;
      for (int r = 0; r < kRows; ++r)
        for (int b = 0; b < kLanes<T>; ++b) packed[b * kRows + r] = r0 + r < rows ? left[r * kLanes<T> + b] : T(0);
    }
}

// One block of rows and one panel, over groups [g0, g1).  The sum of the groups before them is in `out`.
template <class T>
void outer_tile(const OuterProduct<T>& p, const T* left, const T* right, int64_t g0, int64_t g1, int64_t rows,
                int64_t columns, T* out) {
  // The gradients are written once and have not been read: without this the stores would wait for memory.
  for (int64_t r = 0; r < rows; ++r) __builtin_prefetch(out + r * p.stride, 1, 3);
  Vec<T> acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) acc[r][v] = Vec<T>{};
  alignas(64) T tile[kRows * kLanes<T>];
  if (g0 > 0) {
    __builtin_memset(tile, 0, sizeof tile);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < columns; ++j) tile[r * kLanes<T> + j] = out[r * p.stride + j];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) acc[r][v] = load(tile + r * kLanes<T> + v * kWidth<T>);
  }
  for (int64_t g = g0; g < g1;) {
    // Examples follow each other without a gap up to the end of the first group that is not full.
    const int64_t start = g;
    int64_t steps = p.examples[g];
    while (p.examples[g++] == kLanes<T> && g < g1) steps += p.examples[g];
    add_panel_times(left + (start - g0) * kLanes<T> * kRows, right + start * kLanes<T> * kLanes<T>, steps, acc);
  }
  if (g1 == p.groups) {
    const Vec<T> factor = splat(p.factor);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) acc[r][v] *= factor;
  }
  if (rows == kRows && columns == kLanes<T>) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) store(out + r * p.stride + v * kWidth<T>, acc[r][v]);
    return;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) store(tile + r * kLanes<T> + v * kWidth<T>, acc[r][v]);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < columns; ++j) out[r * p.stride + j] = tile[r * kLanes<T> + j];
}

template <class T>
void outer_product(const OuterProduct<T>& p, int64_t first, int64_t last, T* scratch) {
  constexpr int64_t block = kPanels * kLanes<T>;
  for (int64_t k = first; k < last; k += kPackedRows) {
    const int64_t rows = smaller(kPackedRows, last - k);
    for (int64_t g0 = 0; g0 < p.groups; g0 += kGroupsAtOnce<T>) {
      const int64_t g1 = smaller(g0 + kGroupsAtOnce<T>, p.groups);
      pack_left(p, k, rows, g0, g1, scratch);
      for (int64_t j0 = 0; j0 < p.columns; j0 += block) {
        const int64_t j1 = smaller(j0 + block, p.columns);
        const T* left = scratch;
        for (int64_t r = 0; r < rows; r += kRows, left += (g1 - g0) * kLanes<T> * kRows)
          for (int64_t j = j0; j < j1; j += kLanes<T>)
            outer_tile(p, left, p.right + j / kLanes<T> * p.panel_stride, g0, g1, smaller(kRows, rows - r),
                       smaller(kLanes<T>, j1 - j), p.destination + (k - first + r) * p.stride + j);
      }
    }
  }
}

}  // namespace
