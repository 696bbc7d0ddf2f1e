// One sweep of dqds over all lanes, and how it is taken back.
#pragma once

#include "common/simd.hpp"
#include "spectra/dqds_state.hpp"

namespace {

// d goes from row to row (dlasq5).
template <class T, int V>
DG_INLINE void dqds_sweep(const T* q, const T* e, T* to_q, T* to_e, int64_t first, int64_t end, DqdsLanes<T>* lanes) {
  constexpr int W = kWidth<T>;
  constexpr int64_t R = V * W;
  const Vec<T> floor = splat(DqdsLimits<T>::kFloor);
  Vec<T> d[V], dmin[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    const T* at = q + first * R + v * W;
    d[v] = select<T>(lanes[v].moves, load(at - R), load(at)) - lanes[v].tau;
    dmin[v] = d[v];
    // No lane has a true row here; the next sweep may read it.
    store(to_q + (first - 1) * R + v * W, splat(DqdsLimits<T>::kPad));
    store(to_e + (first - 1) * R + v * W, Vec<T>{});
    d[v] = max_or_second(d[v], floor);
  }
  const auto step = [&](int64_t j) DG_INLINE_LAMBDA {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const int64_t at = j * R + v * W;
      const Vec<T> next = select<T>(lanes[v].moves, load(q + at), load(q + at + R));
      const Vec<T> off = select<T>(lanes[v].moves, load(e + at - R), load(e + at));
      const Vec<T> sum = d[v] + off;
      const Vec<T> t = next / sum;
      store(to_q + at, sum);
      store(to_e + at, off * t);
      d[v] = fma(d[v], t, -lanes[v].tau);
      dmin[v] = min_or_second(d[v], dmin[v]);
      d[v] = max_or_second(d[v], floor);
    }
  };
  for (int64_t j = first; j < end - 3; ++j) step(j);
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    lanes[v].dn2 = d[v];
    lanes[v].dmin2 = dmin[v];
  }
  step(end - 3);
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    lanes[v].dn1 = d[v];
    lanes[v].dmin1 = dmin[v];
  }
  step(end - 2);
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    lanes[v].dn = d[v];
    lanes[v].dmin = dmin[v];
    store(to_q + (end - 1) * R + v * W, d[v]);
  }
}

// What a refused sweep read, written over what it wrote: both buffers then hold the same for those lanes.
template <class T, int V>
__attribute__((noinline)) void dqds_restore(const T* q, const T* e, T* to_q, T* to_e, int64_t first, int64_t end,
                                            Int<T> refused, Int<T> moved) {
  constexpr int64_t R = V * kWidth<T>;
  for (int64_t j = first; j < end; ++j) {
    const int64_t at = j * R;
    const Vec<T> old_q = select<T>(moved, load(q + at - R), load(q + at));
    const Vec<T> old_e = select<T>(moved, load(e + at - R), load(e + at));
    store(to_q + at, select<T>(refused, old_q, load(to_q + at)));
    store(to_e + at, select<T>(refused, old_e, load(to_e + at)));
  }
}

}  // namespace
