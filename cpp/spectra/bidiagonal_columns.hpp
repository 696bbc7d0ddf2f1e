// Bidiagonalization of one large matrix, vectors along its columns: the same sweep as side by side, in steps that may
// be shared between threads.
//
// Columns start at multiples of a vector, rows beyond the matrix are zero, and so are the entries of reflectors above
// their first row: work on whole vectors then changes nothing that it should not.
#pragma once

#include "common/register_transpose.hpp"
#include "common/simd.hpp"
#include "spectra/bidiagonal_lanes.hpp"

namespace {

using depthgauge::spectra::Columns;

// In a tree, the same for every number of columns at once.
template <class T>
DG_INLINE T sum_of(Vec<T> v) {
  T part[kWidth<T>];
  store(part, v);
#pragma GCC unroll 4
  for (int half = 1; half < kWidth<T>; half *= 2)
#pragma GCC unroll 8
    for (int i = 0; i < kWidth<T>; i += 2 * half) part[i] += part[i + half];
  return part[0];
}

template <class T>
int64_t column_stride(int64_t rows) {
  // Not a multiple of a page, where columns would fall on the same cache sets.
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  return ((rows + kLine - 1) / kLine | 1) * kLine;
}

// A matrix to columns that are `stride` apart.
template <class T>
DG_INLINE void copy_columns(const Matrix& a, ScaleBy<T> scale, T* to, int64_t stride) {
  constexpr int W = kWidth<T>;
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const Vec<T> first = splat(scale.first), second = splat(scale.second);
  const auto read = [&](int64_t i, int64_t j) DG_INLINE_LAMBDA {
    Vec<T> v;
    __builtin_memcpy(&v, a.data + i * a.row_stride + j * a.column_stride, sizeof v);
    return v * first * second;
  };
  // What whole vectors, or squares of them, have covered.
  int64_t rows = 0, columns = 0;
  if (a.row_stride == kSize) {
    rows = a.rows / W * W;
    columns = a.columns;
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t i = 0; i < rows; i += W) store(to + j * stride + i, read(i, j));
  } else if (a.column_stride == kSize) {
    rows = a.rows / W * W;
    columns = a.columns / W * W;
    for (int64_t j = 0; j < columns; j += W)
      for (int64_t i = 0; i < rows; i += W) {
        Vec<T> v[W];
#pragma GCC unroll 16
        for (int l = 0; l < W; ++l) v[l] = read(i + l, j);
        register_transpose<T>(v);
#pragma GCC unroll 16
        for (int l = 0; l < W; ++l) store(to + (j + l) * stride + i, v[l]);
      }
  }
  // The rest, in strips so that both the matrix and its copy are read and written in whole cache lines.
  const auto copy = [&](int64_t top, int64_t first, int64_t last) DG_INLINE_LAMBDA {
    constexpr int64_t kStrip = 32;
    for (; first < last; first += kStrip)
      for (int64_t i = top; i < a.rows; ++i)
        for (int64_t j = first; j < first + kStrip && j < last; ++j)
          to[j * stride + i] = scalar_at<T>(a, i, j) * scale.first * scale.second;
  };
  copy(rows, 0, columns);
  copy(0, columns, a.columns);
}

template <class T>
void pack_columns(const Matrix& matrix, const Scan& scan, const T* triangle, const Columns<T>& c) {
  const int64_t above = c.rows - matrix.rows;
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const Matrix top{reinterpret_cast<const char*>(triangle), above, c.columns, c.columns * kSize, kSize};
  copy_columns(top, {1, 1}, c.a, c.stride);
  copy_columns(matrix, scale_by<T>(scan), c.a + above, c.stride);
  for (int64_t j = 0; j < c.columns; ++j)
    for (int64_t i = c.rows; i < c.stride; ++i) c.a[j * c.stride + i] = 0;
  for (int64_t i = 0; i < c.stride; ++i) c.old_u[i] = c.z[i] = c.old_z[i] = 0;
  for (int64_t j = 0; j < c.across; ++j) c.y[j] = c.v[j] = c.old_y[j] = c.old_v[j] = 0;
}

// Four chains, in a fixed order.
template <class T>
DG_INLINE T dot(const T* a, const T* b, int64_t first, int64_t last) {
  constexpr int W = kWidth<T>;
  Vec<T> sum[4] = {};
  int64_t i = first;
  for (; i + 4 * W <= last; i += 4 * W)
    for (int s = 0; s < 4; ++s) sum[s] = fma(load(a + i + s * W), load(b + i + s * W), sum[s]);
  for (; i < last; i += W) sum[0] = fma(load(a + i), load(b + i), sum[0]);
  return sum_of<T>((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// Column k as it is after all steps so far, into `to`.
template <class T>
DG_INLINE void current_column(const Columns<T>& c, int64_t k, T* to) {
  const Vec<T> y = splat(c.old_y[k]), v = splat(c.old_v[k]);
  const T* const column = c.a + k * c.stride;
  for (int64_t i = k / kWidth<T> * kWidth<T>; i < c.stride; i += kWidth<T>)
    store(to + i, fma(-load(c.old_z + i), v, fma(-load(c.old_u + i), y, load(column + i))));
}

template <class T>
DG_INLINE T reflector(T head, T square, T length) {
  const T size = head < 0 ? -head : head;
  return square > ReflectorLimits<T>::kLeast ? 1 / (size * length + square) : T(0);
}

template <class T>
T reflect_column(Columns<T>& c, int64_t k) {
  const int64_t start = k / kWidth<T> * kWidth<T>;
  current_column(c, k, c.u);
  for (int64_t i = start; i < k; ++i) c.u[i] = 0;
  const T square = dot(c.u, c.u, start, c.stride), head = c.u[k], length = sqrt(splat(square))[0];
  c.tau = reflector(head, square, length);
  const T signed_length = head < 0 ? -length : length;
  c.u[k] = head + signed_length;
  c.corner = c.tau == 0 ? head : -signed_length;
  return square;
}

// C columns from j on.
template <class T, int C, bool pending>
DG_INLINE void sweep_block(const Columns<T>& c, int64_t k, int64_t j, T* z) {
  constexpr int W = kWidth<T>;
  const int64_t stride = c.stride, start = k / W * W;
  T* const column = c.a + j * stride;
  const T *const u = c.u, *const old_u = c.old_u, *const old_z = c.old_z;
  Vec<T> y[C], v[C], sum[C] = {};
#pragma GCC unroll 4
  for (int s = 0; s < C; ++s) {
    y[s] = splat(-c.old_y[j + s]);
    v[s] = splat(-c.old_v[j + s]);
  }
#pragma GCC unroll 2
  for (int64_t i = start; i < stride; i += W) {
    const Vec<T> ui = load(u + i), old_ui = load(old_u + i), old_zi = load(old_z + i);
#pragma GCC unroll 4
    for (int s = 0; s < C; ++s) {
      Vec<T> x = load(column + s * stride + i);
      if (pending) {
        x = fma(old_zi, v[s], fma(old_ui, y[s], x));
        store(column + s * stride + i, x);
      }
      sum[s] = fma(x, ui, sum[s]);
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < C; ++s) {
    const T product = c.tau * sum_of<T>(sum[s]), entry = column[s * stride + k] - u[k] * product;
    c.y[j + s] = product;
    c.v[j + s] = entry;
    y[s] = splat(entry);
  }
  if (!z) return;
#pragma GCC unroll 2
  for (int64_t i = start; i < stride; i += W) {
    Vec<T> total = load(z + i);
#pragma GCC unroll 4
    for (int s = 0; s < C; ++s) total = fma(load(column + s * stride + i), y[s], total);
    store(z + i, total);
  }
}

template <class T, bool pending>
DG_INLINE void sweep_range(const Columns<T>& c, int64_t k, int64_t first, int64_t last, T* z) {
  int64_t j = first;
  for (; j + 4 <= last; j += 4) sweep_block<T, 4, pending>(c, k, j, z);
  for (; j < last; ++j) sweep_block<T, 1, pending>(c, k, j, z);
}

// Columns [first, last) of step k; z is set to what they contribute to the next z.
template <class T>
void sweep(const Columns<T>& c, int64_t k, int64_t first, int64_t last, T* z) {
  for (int64_t i = k / kWidth<T> * kWidth<T>; z && i < c.stride; ++i) z[i] = 0;
  if (k == 0)
    sweep_range<T, false>(c, k, first, last, z);
  else
    sweep_range<T, true>(c, k, first, last, z);
}

template <class T>
DG_INLINE void next_step(Columns<T>& c) {
  swap(c.u, c.old_u);
  swap(c.z, c.old_z);
  swap(c.y, c.old_y);
  swap(c.v, c.old_v);
}

// The row reflector of step k, I - pi v v' with v = r + delta e1, and z from the sum of its parts.
template <class T>
T reflect_row(Columns<T>& c, int64_t k, const T* parts, int64_t count) {
  constexpr int W = kWidth<T>;
  T *const u = c.u, *const z = c.z, *const y = c.y, *const v = c.v;
  const int64_t from = (k + 1) / W * W;
  for (int64_t j = from; j <= k; ++j) y[j] = v[j] = 0;
  const T square = dot(v, v, from, c.across);
  const T head = v[k + 1], length = sqrt(splat(square))[0], pi = reflector(head, square, length);
  const T delta = head < 0 ? -length : length;
  const T along = dot(y, v, from, c.across) + delta * y[k + 1];
  v[k + 1] = head + delta;
  const T* const beside = c.a + (k + 1) * c.stride;
  for (int64_t i = from; i < c.stride; i += W) {
    Vec<T> total = load(parts + i);
    for (int64_t part = 1; part < count; ++part) total += load(parts + part * c.stride + i);
    total = fma(splat(delta), load(beside + i), total);
    store(z + i, splat(pi) * fma(-load(u + i), splat(along), total));
  }
  for (int64_t i = from; i <= k; ++i) z[i] = 0;
  next_step(c);
  return square;
}

template <class T>
void keep_row(Columns<T>& c, int64_t k, T* row) {
  row[k] = c.corner;
  for (int64_t j = k + 1; j < c.columns; ++j) row[j] = c.v[j];
  // No reflector, and with it no product: z is zero from the start.
  for (int64_t j = 0; j < c.across; ++j) c.v[j] = 0;
  next_step(c);
}

}  // namespace
