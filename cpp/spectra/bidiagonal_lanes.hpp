// Bidiagonalization of small matrices side by side, one a lane (Golub and Kahan 1965).
//
// Everything is vertical: [column][row][lane].  One sweep over the trailing matrix a step: it applies the update that
// the last step left pending, forms y = A'u for the column reflector at hand, and from it, column by column, the row
// that the row reflector is made of, r = row - u0 y, and z += A r for that row as it is.  The reflector differs from r
// in its first entry only, which is set right in z afterwards.
#pragma once

#include "common/simd.hpp"
#include "spectra/pack_lanes.hpp"
#include "spectra/singular_kernels.hpp"

namespace {

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

// From column to column, in vectors: not a multiple of a page, where columns side by side and the vectors of a step
// would all fall on the same cache sets.
DG_INLINE int64_t lanes_stride(int64_t rows) { return rows % 32 == 0 ? rows + 1 : rows; }

// The matrices, and the vectors of the step at hand and of the last one.
template <class T>
struct LanesStep {
  DG_INLINE LanesStep(T* workspace, int64_t rows, int64_t columns)
      : a(reinterpret_cast<Vec<T>*>(workspace)), stride(lanes_stride(rows)), m(rows), n(columns) {
    u = a + stride * n;
    old_u = u + stride;
    z = old_u + stride;
    old_z = z + stride;
    y = old_z + stride;
    v = y + n;
    old_y = v + n;
    old_v = old_y + n;
    for (int64_t i = 0; i < m; ++i) old_u[i] = old_z[i] = Vec<T>{};
    for (int64_t j = 0; j < n; ++j) old_y[j] = old_v[j] = Vec<T>{};
  }
  DG_INLINE void advance() {
    swap(u, old_u);
    swap(z, old_z);
    swap(y, old_y);
    swap(v, old_v);
  }

  Vec<T>* a;
  int64_t stride, m, n;
  Vec<T>*u, *old_u, *z, *old_z;  // by row
  Vec<T>*y, *old_y, *v, *old_v;  // by column
};

// A reflector I - factor x x', of a vector with first entry `head`, the sum of whose squares is `square`: x differs
// from it by `delta` in its first entry.
template <class T>
struct LanesReflector {
  DG_INLINE LanesReflector(Vec<T> head, Vec<T> square) {
    const Int<T> worth = square > splat(ReflectorLimits<T>::kLeast);
    const Vec<T> length = sqrt(square);
    factor = select<T>(worth, splat(T(1)) / fma(abs(head), length, square), Vec<T>{});
    delta = copy_sign(length, head);
  }
  Vec<T> factor, delta;
};

// Column k as it is after all steps so far, and the sum of its squares; z is cleared.
template <class T>
DG_INLINE Vec<T> current_column(LanesStep<T> step, int64_t k) {
  Vec<T> square{};
  const Vec<T> yk = step.old_y[k], vk = step.old_v[k];
  for (int64_t i = k; i < step.m; ++i) {
    step.u[i] = fma(-step.old_z[i], vk, fma(-step.old_u[i], yk, step.a[k * step.stride + i]));
    square = fma(step.u[i], step.u[i], square);
    step.z[i] = Vec<T>{};
  }
  return square;
}

// One step over `C` columns from j on, below row k: see above.  Several, to load u and z less often.
template <class T, int C, bool pending>
DG_INLINE void sweep_columns(LanesStep<T> step, int64_t k, int64_t j, Vec<T> tau) {
  const int64_t s = step.stride, m = step.m;
  const Vec<T>*const u = step.u, *const old_u = step.old_u, *const old_z = step.old_z;
  Vec<T>* const z = step.z;
  Vec<T> dot[C] = {}, yj[C], vj[C];
  for (int c = 0; c < C; ++c) {
    yj[c] = step.old_y[j + c];
    vj[c] = step.old_v[j + c];
  }
  Vec<T>* const column = step.a + j * s;
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
    step.y[j + c] = product;
    step.v[j + c] = yj[c] = fma(-u[k], product, column[c * s + k]);
  }
#pragma GCC unroll 2
  for (int64_t i = k + 1; i < m; ++i) {
    Vec<T> sum = z[i];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sum = fma(column[c * s + i], yj[c], sum);
    z[i] = sum;
  }
}

template <class T, bool pending>
DG_INLINE void sweep_trailing(LanesStep<T> step, int64_t k, Vec<T> tau) {
  int64_t j = k + 1;
  for (; j + 4 <= step.n; j += 4) sweep_columns<T, 4, pending>(step, k, j, tau);
  for (; j < step.n; ++j) sweep_columns<T, 1, pending>(step, k, j, tau);
}

// The row reflector of step k, I - pi v v' with v = r + delta e1, and z set right; returns the sum of squares of r.
template <class T>
DG_INLINE Vec<T> reflect_rows(LanesStep<T> step, int64_t k) {
  Vec<T>*const z = step.z, *const v = step.v;
  const Vec<T>* const y = step.y;
  Vec<T> square{}, along{};
  for (int64_t j = k + 1; j < step.n; ++j) {
    square = fma(v[j], v[j], square);
    along = fma(y[j], v[j], along);
  }
  const LanesReflector<T> row(v[k + 1], square);
  v[k + 1] += row.delta;
  along = fma(row.delta, y[k + 1], along);
  const Vec<T>* const beside = step.a + (k + 1) * step.stride;
  for (int64_t i = k + 1; i < step.m; ++i) z[i] = row.factor * fma(-step.u[i], along, fma(row.delta, beside[i], z[i]));
  return square;
}

template <class T>
int64_t side_by_side_workspace(int64_t rows, int64_t columns) {
  return ((columns + 4) * lanes_stride(rows) + 4 * columns) * kWidth<T>;
}

template <class T>
void side_by_side(const Matrix* matrices, const Scan* scans, int count, int64_t m, int64_t n, T* q, T* e,
                  int64_t stride, T* workspace) {
  pack_lanes(matrices, scans, count, m, n, workspace, lanes_stride(m));
  LanesStep<T> step(workspace, m, n);
  for (int64_t k = 0; k < n; ++k) {
    Vec<T> square = current_column(step, k);
    store(q + k * stride, square);
    if (k + 1 == n) break;
    const LanesReflector<T> column(step.u[k], square);
    step.u[k] += column.delta;
    if (k == 0)
      sweep_trailing<T, false>(step, k, column.factor);
    else
      sweep_trailing<T, true>(step, k, column.factor);
    store(e + k * stride, reflect_rows(step, k));
    step.advance();
  }
}

}  // namespace
