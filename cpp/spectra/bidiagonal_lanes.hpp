// Bidiagonalization of small matrices side by side, one a lane (Golub and Kahan 1965).
//
// Everything is vertical: [column][row][lane].  One sweep over the trailing matrix a step: it applies the update that
// the last step left pending, forms y = A'u for the column reflector at hand, and from it, column by column, the row
// that the row reflector is made of, r = row - u0 y, and z += A r for that row as it is.  The reflector differs from r
// in its first entry only, which is set right in z afterwards.
#pragma once

#include "common/simd.hpp"
#include "common/register_transpose.hpp"
#include "spectra/singular_kernels.hpp"

namespace {

using depthgauge::spectra::Matrix;
using depthgauge::spectra::Scan;

template <class T>
struct ReflectorLimits;
// Below this a sum of squares of numbers up to about 1 is not worth a reflector, and not exact enough for one.
template <>
struct ReflectorLimits<double> {
  static constexpr double kLeast = 0x1p-900;
};
template <>
struct ReflectorLimits<float> {
  static constexpr float kLeast = 0x1p-90f;
};

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

// From column to column, in vectors: not a multiple of a page, where columns side by side and the vectors of a step
// would all fall on the same cache sets.
DG_INLINE int64_t lanes_stride(int64_t rows) { return rows % 32 == 0 ? rows + 1 : rows; }

template <class T>
int64_t side_by_side_workspace(int64_t rows, int64_t columns) {
  return ((columns + 4) * lanes_stride(rows) + 4 * columns) * kWidth<T>;
}

// One step over `C` columns from j on, `s` vectors apart, below row k: see above.  Several, to load u and z less often.
template <class T, int C, bool pending>
DG_INLINE void sweep_columns(Vec<T>* a, int64_t s, int64_t m, int64_t k, int64_t j, const Vec<T>* u,
                             const Vec<T>* old_u, const Vec<T>* old_z, const Vec<T>* old_y, const Vec<T>* old_v,
                             Vec<T> tau, Vec<T>* y, Vec<T>* r, Vec<T>* z) {
  Vec<T> dot[C] = {}, yj[C], vj[C];
  for (int c = 0; c < C; ++c) {
    yj[c] = old_y[j + c];
    vj[c] = old_v[j + c];
  }
  Vec<T>* const column = a + j * s;
  // Two steps between branches: see add_products in stack/gemm.hpp.
#pragma GCC unroll 2
  for (int64_t i = k; i < m; ++i) {
    const Vec<T> ui = u[i];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      Vec<T> x = column[c * s + i];
      if (pending) {
        x = fma(-old_u[i], yj[c], x);
        x = fma(-old_z[i], vj[c], x);
        column[c * s + i] = x;
      }
      dot[c] = fma(x, ui, dot[c]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    const Vec<T> product = tau * dot[c];
    y[j + c] = product;
    r[j + c] = yj[c] = fma(-u[k], product, column[c * s + k]);
  }
#pragma GCC unroll 2
  for (int64_t i = k + 1; i < m; ++i) {
    Vec<T> sum = z[i];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sum = fma(column[c * s + i], yj[c], sum);
    z[i] = sum;
  }
}

// Runs of `size` numbers, as many as a vector has or more, one of each matrix, to the lanes of vectors that are `stride`
// apart.  Null stands for zeros.
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

template <class T>
void side_by_side(const Matrix* matrices, const Scan* scans, int count, int64_t m, int64_t n, T* q, T* e,
                  int64_t stride, T* workspace) {
  const int64_t s = lanes_stride(m);
  pack_lanes(matrices, scans, count, m, n, workspace, s);
  Vec<T>* const a = reinterpret_cast<Vec<T>*>(workspace);
  Vec<T>*u = a + s * n, *old_u = u + s, *z = old_u + s, *old_z = z + s;
  Vec<T>*y = old_z + s, *v = y + n, *old_y = v + n, *old_v = old_y + n;
  const Vec<T> zero{}, one = splat(T(1)), least = splat(ReflectorLimits<T>::kLeast);
  for (int64_t i = 0; i < m; ++i) old_u[i] = old_z[i] = zero;
  for (int64_t j = 0; j < n; ++j) old_y[j] = old_v[j] = zero;
  for (int64_t k = 0; k < n; ++k) {
    // The column at hand, and its reflector I - tau u u'.
    Vec<T> square{};
    const Vec<T> yk = old_y[k], vk = old_v[k];
    for (int64_t i = k; i < m; ++i) {
      u[i] = fma(-old_z[i], vk, fma(-old_u[i], yk, a[k * s + i]));
      square = fma(u[i], u[i], square);
      z[i] = zero;
    }
    store(q + k * stride, square);
    if (k + 1 == n) break;
    Int<T> worth = square > least;
    Vec<T> length = sqrt(square), head = u[k];
    Vec<T> tau = select<T>(worth, one / fma(abs(head), length, square), zero);
    u[k] = head + copy_sign(length, head);

    int64_t j = k + 1;
    if (k == 0) {
      for (; j + 4 <= n; j += 4) sweep_columns<T, 4, false>(a, s, m, k, j, u, old_u, old_z, old_y, old_v, tau, y, v, z);
      for (; j < n; ++j) sweep_columns<T, 1, false>(a, s, m, k, j, u, old_u, old_z, old_y, old_v, tau, y, v, z);
    } else {
      for (; j + 4 <= n; j += 4) sweep_columns<T, 4, true>(a, s, m, k, j, u, old_u, old_z, old_y, old_v, tau, y, v, z);
      for (; j < n; ++j) sweep_columns<T, 1, true>(a, s, m, k, j, u, old_u, old_z, old_y, old_v, tau, y, v, z);
    }
    // The row, and its reflector I - pi v v', v = r + delta e1.
    square = zero;
    Vec<T> along{};
    for (j = k + 1; j < n; ++j) {
      square = fma(v[j], v[j], square);
      along = fma(y[j], v[j], along);
    }
    store(e + k * stride, square);
    worth = square > least;
    length = sqrt(square);
    head = v[k + 1];
    const Vec<T> pi = select<T>(worth, one / fma(abs(head), length, square), zero);
    const Vec<T> delta = copy_sign(length, head);
    v[k + 1] = head + delta;
    along = fma(delta, y[k + 1], along);
    const Vec<T>* const beside = a + (k + 1) * s;
    for (int64_t i = k + 1; i < m; ++i) z[i] = pi * fma(-u[i], along, fma(delta, beside[i], z[i]));
    swap(u, old_u);
    swap(z, old_z);
    swap(y, old_y);
    swap(v, old_v);
  }
}

}  // namespace
