// A factor read, transposed, and freed of the scales of its rows and columns.
#pragma once

#include "common/simd.hpp"
#include "spectra/graded_workspace.hpp"
#include "spectra/graded_scaling.hpp"

namespace {

// Factors within 2^±500 are scaled by rows first and columns later; others entry by entry.
constexpr double kLargest = 0x1p500, kSmallest = 0x1p-500;

// Copies `count` elements `step` bytes apart as doubles; false if one is not finite.
template <class T>
DG_INLINE bool read_line(const char* from, int64_t step, int64_t count, double* to) {
  double check = 0;
  if (step == static_cast<int64_t>(sizeof(T))) {
    Vec<double> checks{};
    for (int64_t i = 0; i < count; ++i) {
      T value;
      __builtin_memcpy(&value, from + i * static_cast<int64_t>(sizeof(T)), sizeof value);
      to[i] = static_cast<double>(value);
    }
    int64_t i = 0;
    for (; i + kW <= count; i += kW) checks += load(to + i) * splat(0.0);
    for (; i < count; ++i) check += to[i] * 0;
    return check + sum(checks) == 0;
  }
  for (int64_t i = 0; i < count; ++i) {
    T value;
    __builtin_memcpy(&value, from + i * step, sizeof value);
    to[i] = static_cast<double>(value);
    check += to[i] * 0;
  }
  return check == 0;
}

// Transposes the factor: column c becomes row to[c] of `transposed`, unless to[c] < 0.  False if an entry is not
// finite.
template <class T>
inline bool read_factor(GradedProduct* p, const Factor& f, const int64_t* to) {
  const int64_t size = static_cast<int64_t>(sizeof(T));
  bool finite = true;
  if (f.row_stride == size && f.column_stride != size) {
    for (int64_t c = 0; c < f.columns; ++c) {
      double* row = to[c] < 0 ? p->factor : p->transposed + to[c] * row_stride(f.rows);
      finite &= read_line<T>(f.data + c * f.column_stride, size, f.rows, row);
      for (int64_t j = f.rows; j < whole_vectors(f.rows); ++j) row[j] = 0;
    }
    return finite;
  }
  const int64_t stride = row_stride(f.columns);
  for (int64_t j = 0; j < f.rows; ++j)
    finite &= read_line<T>(f.data + j * f.row_stride, f.column_stride, f.columns, p->factor + j * stride);
  if (finite) transpose(p->factor, stride, f.rows, f.columns, p->transposed, row_stride(f.rows), to);
  return finite;
}

DG_INLINE bool read(GradedProduct* p, const Factor& f, int64_t* to) {
  for (int64_t c = 0; c < f.columns; ++c) to[c] = -1;
  for (int64_t i = 0; i < p->live; ++i) to[p->order[i]] = i;
  return f.single ? read_factor<float>(p, f, to) : read_factor<double>(p, f, to);
}

// Finds exponents of rows and columns that bring the largest entry of each near one, kNothing of zeros, columns in the
// order of the transposed rows.  Returns whether all entries are far from the ends of the range; if so the transposed
// factor is left scaled by rows, else by rows and columns at once, lest the small entries of a small column vanish.
inline bool equilibrate(GradedProduct* p, int64_t m, int64_t* rows, int64_t* columns) {
  const int64_t stride = row_stride(m), count = whole_vectors(m);
  double* const tops = p->vectors;
  clear(tops, count);
  Vec<double> low = splat(1.0);
  for (int64_t i = 0; i < p->live; ++i)
    for (int64_t j = 0; j < count; j += kW) {
      const Vec<double> x = abs(load(p->transposed + i * stride + j));
      store(tops + j, max_or_second(x, load(tops + j)));
      const Vec<double> y = select<double>(x == Vec<double>{}, low, x);
      low = y < low ? y : low;
    }
  bool plain = largest_magnitude(tops, count) <= kLargest;
  for (int v = 0; v < kW; ++v) plain = plain && low[v] >= kSmallest;
  if (plain) {
    for (int64_t j = 0; j < m; ++j) {
      rows[j] = exponent(tops[j]);
      tops[j] = rows[j] == kNothing ? 0 : power(-rows[j]);
    }
    for (int64_t i = 0; i < p->live; ++i) {
      double* row = p->transposed + i * stride;
      Vec<double> most{};
      for (int64_t j = 0; j < count; j += kW) {
        const Vec<double> x = load(row + j) * load(tops + j);
        store(row + j, x);
        most = max_or_second(abs(x), most);
      }
      columns[i] = exponent(largest(most));
    }
    return true;
  }
  for (int64_t j = 0; j < m; ++j) {
    rows[j] = kNothing;
    for (int64_t i = 0; i < p->live; ++i) rows[j] = larger(rows[j], exponent(p->transposed[i * stride + j]));
  }
  for (int64_t i = 0; i < p->live; ++i) {
    double* row = p->transposed + i * stride;
    columns[i] = kNothing;
    for (int64_t j = 0; j < m; ++j)
      if (row[j] != 0) columns[i] = larger(columns[i], exponent(row[j]) - rows[j]);
    for (int64_t j = 0; j < m; ++j)
      if (row[j] != 0) row[j] = scale(row[j], -rows[j] - columns[i]);
  }
  return false;
}

}  // namespace
