// A product of factors as Q D U: one more factor, and the singular values.
#pragma once

#include "common/simd.hpp"
#include "spectra/graded_jacobi.hpp"
#include "spectra/graded_kernels.hpp"
#include "spectra/graded_qr.hpp"
#include "spectra/graded_scaling.hpp"

namespace {

using namespace depthgauge::spectra;

// A factor whose columns differ by more than this power of two is applied in two steps, the scales of its columns first:
// F Q would bury the small ones under the large.
constexpr int64_t kColumnSpread = 6;
// Factors within 2^±500 are scaled by rows first and columns later; others entry by entry.
constexpr double kLargest = 0x1p500, kSmallest = 0x1p-500;
// Reflectors applied at once.
constexpr int64_t kBlock = 4;

DG_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
DG_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Sizes of the pieces of memory of a product, in elements.
struct Room {
  explicit Room(const GradedSizes& s) {
    const int64_t most = larger(s.rows, s.width);
    longest = row_stride(most);
    matrix = larger(s.entries, most * row_stride(s.rank));
    reflectors = s.several ? (s.rank + kBlock) * row_stride(s.rows) : 0;
    u = s.rank * row_stride(s.width);
    triangle = (s.rank + 3) * row_stride(s.rank);  // read in fours
    vectors = qr_scratch(most, most);
  }
  int64_t doubles() const { return 3 * matrix + reflectors + 2 * u + triangle + vectors + longest; }
  int64_t integers() const { return 10 * longest; }
  int64_t longest, matrix, reflectors, u, triangle, vectors;
};

inline int64_t graded_memory(const GradedSizes& sizes) {
  const Room room(sizes);
  return 8 * (room.doubles() + room.integers());
}

// Integer scratch of a product, each as long as the longest side.
struct Scratch {
  explicit Scratch(const GradedProduct& p) {
    int64_t* next = p.integers;
    const int64_t longest = Room(p.sizes).longest;
    int64_t** const arrays[] = {&rows, &columns, &all_columns, &owners,
                                &to,   &r,       &row_order,   &column_order};
    for (int64_t** array : arrays) {
      *array = next;
      next += longest;
    }
  }
  int64_t *rows, *columns;  // exponents of rows and columns of the factor, columns in the order of Q
  int64_t* all_columns;     // the same in their own order
  int64_t* owners;          // the row of the product that each row of the panel makes
  int64_t* to;              // where a column goes when it is turned into a row
  int64_t* r;               // exponents of the rows of the panel
  int64_t *row_order, *column_order;
};

inline void start_graded(GradedProduct* p, const GradedSizes& sizes, void* memory) {
  const Room room(sizes);
  double* next = static_cast<double*>(memory);
  const auto carve = [&](int64_t count) {
    double* piece = next;
    next += count;
    return piece;
  };
  *p = GradedProduct{};
  p->sizes = sizes;
  p->factor = carve(room.matrix);
  p->turned = carve(room.matrix);
  p->panel = carve(room.matrix);
  p->reflectors = carve(room.reflectors);
  p->u = carve(room.u);
  p->next_u = carve(room.u);
  p->triangle = carve(room.triangle);
  p->vectors = carve(room.vectors);
  p->betas = carve(room.longest);
  p->integers = reinterpret_cast<int64_t*>(next);
  p->exponents = p->integers + 8 * room.longest;
  p->order = p->exponents + room.longest;
  p->u_stride = row_stride(sizes.width);
  p->triangle_stride = row_stride(sizes.rank);
  p->rank = p->live = sizes.width;
  for (int64_t j = 0; j < sizes.width; ++j) {
    p->exponents[j] = 0;
    p->order[j] = j;
  }
}

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

// Turns the factor: column c becomes row to[c] of `turned`, unless to[c] < 0.  False if an entry is not finite.
template <class T>
inline bool read_factor(GradedProduct* p, const Factor& f, const int64_t* to) {
  const int64_t size = static_cast<int64_t>(sizeof(T));
  bool finite = true;
  if (f.row_stride == size && f.column_stride != size) {
    for (int64_t c = 0; c < f.columns; ++c) {
      double* row = to[c] < 0 ? p->factor : p->turned + to[c] * row_stride(f.rows);
      finite &= read_line<T>(f.data + c * f.column_stride, size, f.rows, row);
      for (int64_t j = f.rows; j < whole_vectors(f.rows); ++j) row[j] = 0;
    }
    return finite;
  }
  const int64_t stride = row_stride(f.columns);
  for (int64_t j = 0; j < f.rows; ++j)
    finite &= read_line<T>(f.data + j * f.row_stride, f.column_stride, f.columns, p->factor + j * stride);
  if (finite) transpose(p->factor, stride, f.rows, f.columns, p->turned, row_stride(f.rows), to);
  return finite;
}

DG_INLINE bool read(GradedProduct* p, const Factor& f, int64_t* to) {
  for (int64_t c = 0; c < f.columns; ++c) to[c] = -1;
  for (int64_t i = 0; i < p->live; ++i) to[p->order[i]] = i;
  return f.single ? read_factor<float>(p, f, to) : read_factor<double>(p, f, to);
}

// Finds exponents of rows and columns that bring the largest entry of each near one, kNothing of zeros, columns in the
// order of the turned rows.  Returns whether all entries are far from the ends of the range; if so the turned factor is
// left scaled by rows, else by rows and columns at once, lest the small entries of a small column vanish.
inline bool equilibrate(GradedProduct* p, int64_t m, int64_t* rows, int64_t* columns) {
  const int64_t stride = row_stride(m), count = whole_vectors(m);
  double* const tops = p->vectors;
  clear(tops, count);
  Vec<double> low = splat(1.0);
  for (int64_t i = 0; i < p->live; ++i)
    for (int64_t j = 0; j < count; j += kW) {
      const Vec<double> x = abs(load(p->turned + i * stride + j));
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
      double* row = p->turned + i * stride;
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
    for (int64_t i = 0; i < p->live; ++i) rows[j] = larger(rows[j], exponent(p->turned[i * stride + j]));
  }
  for (int64_t i = 0; i < p->live; ++i) {
    double* row = p->turned + i * stride;
    columns[i] = kNothing;
    for (int64_t j = 0; j < m; ++j)
      if (row[j] != 0) columns[i] = larger(columns[i], exponent(row[j]) - rows[j]);
    for (int64_t j = 0; j < m; ++j)
      if (row[j] != 0) row[j] = scale(row[j], -rows[j] - columns[i]);
  }
  return false;
}

// x = (1 - V T V^T) x, or with T^T where `Turned`, for J vectors of columns of rows first <= i < last.
template <bool Turned, int J>
DG_INLINE void reflect_columns(const double* v, int64_t v_stride, const double* t, double* x, int64_t stride,
                               int64_t first, int64_t last) {
  Vec<double> y[kBlock][J];
  for (int b = 0; b < kBlock; ++b)
    for (int c = 0; c < J; ++c) y[b][c] = Vec<double>{};
  for (int64_t i = first; i < last; ++i) {
    Vec<double> row[J];
    for (int c = 0; c < J; ++c) row[c] = load(x + i * stride + c * kW);
    for (int b = 0; b < kBlock; ++b) {
      const Vec<double> s = splat(v[b * v_stride + i]);
      for (int c = 0; c < J; ++c) y[b][c] = fma(s, row[c], y[b][c]);
    }
  }
  // T is upper triangular: in an order where each takes only those that are still as they were.
  for (int n = 0; n < kBlock; ++n) {
    const int b = Turned ? kBlock - 1 - n : n;
    for (int c = 0; c < J; ++c) {
      Vec<double> z = splat(-t[b * kBlock + b]) * y[b][c];
      for (int l = Turned ? 0 : b + 1; l < (Turned ? b : kBlock); ++l)
        z = fma(splat(-t[Turned ? l * kBlock + b : b * kBlock + l]), y[l][c], z);
      y[b][c] = z;
    }
  }
  for (int64_t i = first; i < last; ++i) {
    Vec<double> row[J];
    for (int c = 0; c < J; ++c) row[c] = load(x + i * stride + c * kW);
    for (int b = 0; b < kBlock; ++b) {
      const Vec<double> s = splat(v[b * v_stride + i]);
      for (int c = 0; c < J; ++c) row[c] = fma(s, y[b][c], row[c]);
    }
    for (int c = 0; c < J; ++c) store(x + i * stride + c * kW, row[c]);
  }
}

template <bool Turned>
DG_INLINE void reflect(const double* v, int64_t v_stride, const double* t, double* x, int64_t stride, int64_t columns,
                       int64_t first, int64_t last) {
  int64_t j = 0;
  for (; j + 2 * kW <= columns; j += 2 * kW)
    reflect_columns<Turned, 2>(v, v_stride, t, x + j, stride, first, last);
  for (; j < columns; j += kW) reflect_columns<Turned, 1>(v, v_stride, t, x + j, stride, first, last);
}

// T of reflectors k to k + 3, whose product is 1 - V T V^T.
inline void block_factor(const GradedProduct* p, int64_t k, double* t) {
  const int64_t stride = row_stride(p->sizes.rows), first = k / kW * kW, length = whole_vectors(p->live) - first;
  const double* v = p->reflectors + k * stride + first;
  clear(t, kBlock * kBlock);
  for (int64_t b = 0; b < kBlock; ++b) {
    t[b * kBlock + b] = p->betas[k + b];
    for (int64_t l = 0; l < b; ++l) {
      const double dot = inner_product(v + l * stride, v + b * stride, length);
      for (int64_t i = 0; i <= l; ++i) t[i * kBlock + b] -= p->betas[k + b] * (t[i * kBlock + l] * dot);
    }
  }
}

// Fills up the last block of reflectors with ones that do nothing.
inline void pad_reflectors(GradedProduct* p) {
  for (int64_t k = p->reflections; k % kBlock; ++k) {
    clear(p->reflectors + k * row_stride(p->sizes.rows), whole_vectors(p->live));
    p->betas[k] = 0;
  }
}

// The turned factor, (live, m), times Q: every reflector from the left, four at a time.
inline void apply_reflectors(GradedProduct* p, int64_t m, const Stop& stop) {
  const int64_t stride = row_stride(p->sizes.rows);
  double t[kBlock * kBlock];
  for (int64_t k = 0; k < p->reflections; k += kBlock) {
    if (m * p->live > 65536 && stop()) return;
    block_factor(p, k, t);
    reflect<true>(p->reflectors + k * stride, stride, t, p->turned, row_stride(m), whole_vectors(m), k, p->live);
  }
}

// Q itself in place of the turned factor, (live, rank), rows in the order of the reflectors.
inline void form_q(GradedProduct* p, const Stop& stop) {
  const int64_t v_stride = row_stride(p->sizes.rows), stride = row_stride(p->rank), count = whole_vectors(p->rank);
  double t[kBlock * kBlock];
  for (int64_t i = 0; i < p->live; ++i) {
    clear(p->turned + i * stride, count);
    if (i < p->rank) p->turned[i * stride + i] = 1;
  }
  // From the last block on, so that only what is no longer the identity is touched.
  for (int64_t k = (p->reflections - 1) / kBlock * kBlock; k >= 0 && p->reflections; k -= kBlock) {
    if (p->rank * p->live > 65536 && stop()) return;
    block_factor(p, k, t);
    const int64_t first = k / kW * kW;
    reflect<false>(p->reflectors + k * v_stride, v_stride, t, p->turned + first, stride, count - first, k, p->live);
  }
}

// out[i] = sum over j >= i of triangle[i][j] u[order[j]], J vectors of columns of four rows.
template <int J>
DG_INLINE void combine_rows(const double* triangle, int64_t t_stride, const double* u, int64_t u_stride,
                            const int64_t* order, int64_t first, int64_t last, double* const* out) {
  Vec<double> total[4][J];
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < J; ++c) total[r][c] = Vec<double>{};
  for (int64_t j = first; j < last; ++j) {
    const double* from = u + order[j] * u_stride;
    Vec<double> row[J];
    for (int c = 0; c < J; ++c) row[c] = load(from + c * kW);
    for (int r = 0; r < 4; ++r) {
      const Vec<double> s = splat(triangle[r * t_stride + j]);
      for (int c = 0; c < J; ++c) total[r][c] = fma(s, row[c], total[r][c]);
    }
  }
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < J; ++c) store(out[r] + c * kW, total[r][c]);
}

// next_u = triangle u, the triangle (rank, columns), its columns in the order of `order`.
inline void combine_u(GradedProduct* p, int64_t rank, int64_t columns, const int64_t* order, const Stop& stop) {
  const int64_t count = whole_vectors(p->sizes.width);
  alignas(64) double spare[2 * kW];
  for (int64_t i = 0; i < rank; i += 4) {
    if (columns * count > 65536 && stop()) return;
    for (int64_t j = 0; j < count;) {
      const bool pair = j + 2 * kW <= count;
      double* out[4];
      for (int r = 0; r < 4; ++r) out[r] = i + r < rank ? p->next_u + (i + r) * p->u_stride + j : spare;
      const double* rows = p->triangle + i * p->triangle_stride;
      if (pair)
        combine_rows<2>(rows, p->triangle_stride, p->u + j, p->u_stride, order, i, columns, out);
      else
        combine_rows<1>(rows, p->triangle_stride, p->u + j, p->u_stride, order, i, columns, out);
      j += pair ? 2 * kW : kW;
    }
  }
}

// Takes the panel, (live, rank of the product), with row exponents s.r and owners of its rows, for Q D: by QR it becomes
// the new Q D and part of U.  The rank is at most `rank`.  False if scales are too far apart for the numbers between them.
inline bool factor_panel(GradedProduct* p, int64_t live, int64_t rank, const Scratch& s, const Stop& stop) {
  const int64_t old = p->rank;
  double* const reflectors = p->sizes.several ? p->reflectors : nullptr;
  const QrProblem qr{p->panel,   row_stride(old), live,       old,
                     s.r,        p->exponents,    s.row_order, s.column_order,
                     reflectors, row_stride(p->sizes.rows), p->betas, p->vectors};
  p->rank = pivoted_qr(qr, smaller(smaller(live, old), rank), stop);
  if (p->started) {
    split_triangle(qr, p->rank, p->triangle, p->triangle_stride, p->exponents);
    combine_u(p, p->rank, old, s.column_order, stop);
    exchange(p->u, p->next_u);
  } else {
    // What orthogonal matrices stand to the right does not matter, so U may have its columns in any order.
    split_triangle(qr, p->rank, p->u, p->u_stride, p->exponents);
    p->started = true;
  }
  Vec<double> check{};
  for (int64_t i = 0; i < p->rank; ++i) {
    double* row = p->u + i * p->u_stride;
    const int64_t width = whole_vectors(p->sizes.width), size = exponent(largest_magnitude(row, width));
    if (size == kNothing) continue;
    const Vec<double> factor = splat(power(-size));
    for (int64_t j = 0; j < width; j += kW) {
      const Vec<double> x = load(row + j) * factor;
      check += x * splat(0.0);
      store(row + j, x);
    }
    p->exponents[i] += size;
  }
  p->reflections = p->sizes.several ? p->rank : 0;
  p->live = live;
  pad_reflectors(p);
  for (int64_t i = 0; i < live; ++i) p->order[i] = s.owners[s.row_order[i]];
  return sum(check) == 0;
}

// Makes the panel from the turned factor, m rows with exponents s.rows, once Q is applied; rows of zeros are dropped.
inline int64_t turn_back(GradedProduct* p, int64_t m, const Scratch& s) {
  const int64_t turned_stride = row_stride(m), stride = row_stride(p->rank), count = whole_vectors(m);
  double* const tops = p->vectors;
  clear(tops, count);
  for (int64_t i = 0; i < p->rank; ++i)
    for (int64_t j = 0; j < count; j += kW)
      store(tops + j, max_or_second(abs(load(p->turned + i * turned_stride + j)), load(tops + j)));
  int64_t live = 0;
  for (int64_t j = 0; j < m; ++j) {
    const int64_t top = s.rows[j] == kNothing ? kNothing : exponent(tops[j]);
    s.to[j] = top == kNothing ? -1 : live;
    if (top == kNothing) continue;
    tops[live] = power(-top);
    s.r[live] = s.rows[j] + top;
    s.owners[live++] = j;
  }
  transpose(p->turned, turned_stride, p->rank, m, p->panel, stride, s.to);
  for (int64_t j = 0; j < live; ++j) multiply_row(p->panel + j * stride, whole_vectors(p->rank), tops[j]);
  return live;
}

// Multiplies by the scales of the columns of a factor, zero columns left out, and turns the factor anew, in the order of
// the new Q and scaled by rows and columns.
inline bool split_factor(GradedProduct* p, const Factor& f, int64_t used, const Scratch& s, const Stop& stop) {
  form_q(p, stop);
  const int64_t q_stride = row_stride(p->rank), count = whole_vectors(p->rank);
  int64_t live = 0;
  for (int64_t i = 0; i < p->live; ++i) {
    const double* row = p->turned + i * q_stride;
    const int64_t top = s.columns[i] == kNothing ? kNothing : exponent(largest_magnitude(row, count));
    if (top == kNothing) continue;
    const Vec<double> factor = splat(power(-top));
    for (int64_t j = 0; j < count; j += kW) store(p->panel + live * q_stride + j, load(row + j) * factor);
    s.r[live] = s.columns[i] + top;
    s.all_columns[p->order[i]] = s.columns[i];
    s.owners[live++] = p->order[i];
  }
  if (!factor_panel(p, live, used, s, stop)) return false;
  read(p, f, s.to);
  for (int64_t i = 0; i < p->live; ++i) {
    double* row = p->turned + i * row_stride(f.rows);
    const int64_t c = s.all_columns[p->order[i]];
    for (int64_t j = 0; j < f.rows; ++j)
      if (row[j] != 0) row[j] = scale(row[j], -s.rows[j] - c);
  }
  return true;
}

inline bool multiply_graded(GradedProduct* p, const Factor& f, const Stop& stop) {
  const Scratch s(*p);
  if (!read(p, f, s.to)) return false;
  const bool by_rows = equilibrate(p, f.rows, s.rows, s.columns);
  int64_t used = 0, low = 0, high = 0;
  for (int64_t i = 0; i < p->live; ++i)
    if (s.columns[i] != kNothing) {
      low = used ? smaller(low, s.columns[i]) : s.columns[i];
      high = used ? larger(high, s.columns[i]) : s.columns[i];
      ++used;
    }
  if (p->started && high - low > kColumnSpread) {
    if (!split_factor(p, f, used, s, stop)) return false;
    used = p->live;
  } else {
    // While Q is the identity the scales of the columns go straight to D; else they go back where they were.
    const int64_t sign = p->started ? 1 : -1;
    for (int64_t i = 0; i < p->live; ++i) {
      if (s.columns[i] == kNothing) continue;
      if (!p->started) p->exponents[i] += s.columns[i];
      if (p->started != by_rows)
        multiply_row(p->turned + i * row_stride(f.rows), whole_vectors(f.rows), power(sign * s.columns[i]));
    }
  }
  apply_reflectors(p, f.rows, stop);
  return factor_panel(p, turn_back(p, f.rows, s), used, s, stop);
}

// One QR of the transposed rows 2^e u, (rank, columns): a triangle takes their place, closer to diagonal.
inline void turn_rows(GradedProduct* p, const double* u, int64_t u_stride, int64_t columns, int64_t* rank, int64_t* e,
                      const Scratch& s, const Stop& stop) {
  const int64_t stride = row_stride(*rank);
  for (int64_t j = 0; j < columns; ++j) {
    s.r[j] = 0;
    s.to[j] = j;
  }
  transpose(u, u_stride, *rank, columns, p->panel, stride, s.to);
  const QrProblem qr{p->panel,    stride,         columns, *rank, s.r,     e,
                     s.row_order, s.column_order, nullptr, 0,     nullptr, p->vectors};
  *rank = pivoted_qr(qr, smaller(*rank, columns), stop);
  split_triangle(qr, *rank, p->triangle, p->triangle_stride, e);
}

inline int64_t graded_values(GradedProduct* p, double* values, int64_t* exponents, const Stop& stop) {
  const Scratch s(*p);
  if (!p->started) {
    for (int64_t i = 0; i < p->rank; ++i) {
      values[i] = 0.5;
      exponents[i] = 1;
    }
    return p->rank;
  }
  int64_t rank = p->rank;
  for (int64_t i = 0; i < rank; ++i) exponents[i] = p->exponents[i];
  turn_rows(p, p->u, p->u_stride, p->sizes.width, &rank, exponents, s, stop);
  turn_rows(p, p->triangle, p->triangle_stride, rank, &rank, exponents, s, stop);
  const JacobiRows rows{p->triangle, p->triangle_stride, rank, rank, exponents, s.row_order, p->vectors};
  jacobi_values(rows, values, stop);
  return rank;
}

}  // namespace
