// Matrices that fall apart while dqds sweeps over them: one part is set aside, and taken back when the other is done.
#pragma once

#include "common/simd.hpp"
#include "spectra/dqds_state.hpp"

namespace {

// Rare, so lane by lane.
template <class T, int V>
class DqdsSplits {
 public:
  DqdsSplits(const DqdsRows<T>& rows, int64_t end) : rows_(rows), end_(end) {}

  // Looks for an off-diagonal that can be dropped, from the bottom; sets aside what is above it.  `column` is the lane
  // among all lanes, `lane` that in its vector.
  __attribute__((noinline)) void split(int column, int lane, DqdsLanes<T>& lanes) const {
    T *q = rows_.q[0] + column, *e = rows_.e[0] + column;
    lanes.idle[lane] = 0;
    const int64_t top = end_ - lanes.left[lane];
    const T tolerance = T(64) * DqdsLimits<T>::kEps * DqdsLimits<T>::kEps;
    for (int64_t j = end_ - 2; j >= top; --j) {
      const T off = e[j * R];
      if (off > lanes.negligible[lane] && off > tolerance * lanes.sigma[lane]) continue;
      const int64_t rows = j - top + 1, to = lanes.aside[lane];
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t from = (top + i) * R, at = (to + i) * R + column;
        rows_.aside_q[at] = q[from];
        // The last row of what is set aside is marked.
        rows_.aside_e[at] = i + 1 < rows ? e[from] : T(-1);
        rows_.aside_sigma[at] = lanes.sigma[lane];
        rows_.aside_desig[at] = lanes.desig[lane];
        q[from] = DqdsLimits<T>::kPad;
        e[from] = 0;
      }
      lanes.aside[lane] += static_cast<Scalar>(rows);
      lanes.left[lane] -= static_cast<Scalar>(rows);
      lanes.restart(lane);
      return;
    }
  }

  // Takes back what was set aside last.  `top` is the first true row of all lanes; returns what it is then.
  __attribute__((noinline)) int64_t resume(int column, int lane, DqdsLanes<T>& lanes, int64_t top) const {
    const int64_t last = lanes.aside[lane];
    int64_t first = last - 1;
    while (first > 0 && rows_.aside_e[(first - 1) * R + column] != T(-1)) --first;
    const int64_t count = last - first;
    // Rows above the first true one are not kept up, and hold what was there some sweeps ago.
    for (; top > end_ - count; --top)
      for (int i = 0; i < R; ++i) {
        rows_.q[0][(top - 2) * R + i] = DqdsLimits<T>::kPad;
        rows_.e[0][(top - 2) * R + i] = 0;
      }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t from = (first + i) * R + column, at = (end_ - count + i) * R + column;
      rows_.q[0][at] = rows_.aside_q[from];
      rows_.e[0][at] = i + 1 < count ? rows_.aside_e[from] : T(0);
    }
    lanes.sigma[lane] = rows_.aside_sigma[first * R + column];
    lanes.desig[lane] = rows_.aside_desig[first * R + column];
    lanes.aside[lane] = static_cast<Scalar>(first);
    lanes.left[lane] = static_cast<Scalar>(count);
    lanes.restart(lane);
    return top;
  }

 private:
  using Scalar = typename Types<T>::Scalar;
  static constexpr int64_t R = V * kWidth<T>;

  const DqdsRows<T>& rows_;
  int64_t end_;
};

}  // namespace
