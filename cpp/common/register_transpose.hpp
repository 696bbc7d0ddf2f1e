// Transposes of as many vectors as a vector has lanes, in registers.
#pragma once

#include "common/simd.hpp"

namespace {

template <int... i>
struct Lanes {};
template <int n, int... i>
struct CountLanes : CountLanes<n - 1, n - 1, i...> {};
template <int... i>
struct CountLanes<0, i...> : Lanes<i...> {};

// Of every two runs of lanes, the first of x and after it the first of y.
template <int run, class V, int... i>
DG_INLINE V first_halves(V x, V y, Lanes<i...>) {
  return __builtin_shufflevector(x, y, (i % (2 * run) < run ? i : i - run + static_cast<int>(sizeof...(i)))...);
}

// The second ones.
template <int run, class V, int... i>
DG_INLINE V second_halves(V x, V y, Lanes<i...>) {
  return __builtin_shufflevector(x, y, (i % (2 * run) < run ? i + run : i + static_cast<int>(sizeof...(i)))...);
}

// Lane i of vector j becomes lane j of vector i.
template <class T, int run = 1>
DG_INLINE void register_transpose(Vec<T>* v) {
  constexpr int W = kWidth<T>;
  if constexpr (run < W) {
#pragma GCC unroll 16
    for (int j = 0; j < W; ++j) {
      if (j & run) continue;
      const Vec<T> x = v[j], y = v[j + run];
      v[j] = first_halves<run>(x, y, CountLanes<W>{});
      v[j + run] = second_halves<run>(x, y, CountLanes<W>{});
    }
    register_transpose<T, 2 * run>(v);
  }
}

}  // namespace
