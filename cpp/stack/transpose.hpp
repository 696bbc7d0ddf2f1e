// A group transposed from [feature][example] into panels of [example][feature].
#pragma once

#include "common/simd.hpp"
#include "common/register_transpose.hpp"

namespace {

template <class T>
DG_INLINE void transpose_square(const T* in, T* out) {
  constexpr int W = kWidth<T>;
  for (int i = 0; i < kLanes<T>; i += W)
    for (int j = 0; j < kLanes<T>; j += W) {
      Vec<T> v[W];
      for (int k = 0; k < W; ++k) v[k] = load(in + (i + k) * kLanes<T> + j);
      register_transpose<T>(v);
      for (int k = 0; k < W; ++k) store(out + (j + k) * kLanes<T> + i, v[k]);
    }
}

// Features beyond n are zero.
template <class T>
void transpose_group(const T* group, int64_t n, T* panel, int64_t panel_stride) {
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>, panel += panel_stride) transpose_square(group + j * kLanes<T>, panel);
  if (j == n) return;
  alignas(64) T rest[kLanes<T> * kLanes<T>];
  for (int64_t i = 0; i < kLanes<T>; ++i)
    store_row(rest + i * kLanes<T>, j + i < n ? load_row(group + (j + i) * kLanes<T>) : Row<T>{});
  transpose_square(rest, panel);
}

}  // namespace
