// Small matrices to lanes: [column][row][lane], scaled on the way.
#pragma once

#include "common/register_transpose.hpp"
#include "common/simd.hpp"
#include "spectra/singular_kernels.hpp"

namespace {

using depthgauge::spectra::Matrix;
using depthgauge::spectra::Scan;

template <class T>
DG_INLINE T scalar_at(const Matrix& a, int64_t i, int64_t j) {
  T value;
  __builtin_memcpy(&value, a.data + i * a.row_stride + j * a.column_stride, sizeof value);
  return value;
}

// The scale that brings a matrix to entries below 2, in two factors, for it may be larger than the largest number.
template <class T>
struct ScaleBy {
  T first, second;
};

template <class T>
DG_INLINE ScaleBy<T> scale_by(const Scan& scan) {
  using S = typename Types<T>::Scalar;
  const S e = static_cast<S>(-scan.exponent), half = e / 2;
  return {power_of_two<T>(half), power_of_two<T>(static_cast<S>(e - half))};
}

// Runs of `size` numbers, as many as a vector has or more, one of each matrix, to the lanes of vectors that are
// `stride` apart.  Null stands for zeros.
template <class T>
DG_INLINE void pack_runs(const char* const* runs, const ScaleBy<T>* scales, int64_t size, T* to, int64_t stride) {
  constexpr int W = kWidth<T>;
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  for (int64_t next = 0; next < size; next += W) {
    // The last ones again, rather than fewer.
    const int64_t i = next + W <= size ? next : size - W;
    Vec<T> v[W];
#pragma GCC unroll 16
    for (int l = 0; l < W; ++l) {
      v[l] = Vec<T>{};
      if (runs[l]) __builtin_memcpy(&v[l], runs[l] + i * kSize, sizeof v[l]);
      v[l] = v[l] * splat(scales[l].first) * splat(scales[l].second);
    }
    register_transpose<T>(v);
#pragma GCC unroll 16
    for (int l = 0; l < W; ++l) store(to + (i + l) * stride, v[l]);
  }
}

// Up to a vector of matrices, (m, n) each, to [column][row][lane], columns `s` vectors apart.
template <class T>
DG_INLINE void pack_lanes(const Matrix* matrices, const Scan* scans, int count, int64_t m, int64_t n, T* to,
                          int64_t s) {
  constexpr int W = kWidth<T>;
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const char* runs[W];
  ScaleBy<T> scales[W];
  int64_t down = kSize, across = m * kSize;  // the same of all that are used
  for (int l = 0; l < W; ++l) {
    const bool used = l < count && scans[l].finite;
    runs[l] = used ? matrices[l].data : nullptr;
    scales[l] = used ? scale_by<T>(scans[l]) : ScaleBy<T>{0, 0};
    if (!used) continue;
    down = matrices[l].row_stride;
    across = matrices[l].column_stride;
  }
  const auto advance = [&](int64_t step) DG_INLINE_LAMBDA {
    for (int l = 0; l < W; ++l)
      if (runs[l]) runs[l] += step;
  };
  if (down == kSize && across == m * kSize && s == m && m * n >= W) {
    pack_runs(runs, scales, m * n, to, W);
  } else if (down == kSize && m >= W) {
    for (int64_t j = 0; j < n; ++j, advance(across)) pack_runs(runs, scales, m, to + j * s * W, W);
  } else if (across == kSize && n >= W) {
    for (int64_t i = 0; i < m; ++i, advance(down)) pack_runs(runs, scales, n, to + i * W, s * W);
  } else {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int l = 0; l < W; ++l)
          to[(j * s + i) * W + l] =
              runs[l] ? scalar_at<T>(matrices[l], i, j) * scales[l].first * scales[l].second : T(0);
  }
}

}  // namespace
