// Products of matrices whose right factor and result come in tiles of one cache line.
#pragma once

#include "jacobian/kernels.hpp"
#include "stack/gemm.hpp"

namespace {

using depthgauge::jacobian::kRowBlock;
using depthgauge::jacobian::Tiles;

template <class T>
DG_INLINE T* tile(const Tiles<T>& p, int64_t row, int64_t group) {
  return p.data + row * p.row + group * p.group;
}

template <class T>
DG_INLINE int64_t groups_of(int64_t columns) {
  return (columns + kLanes<T> - 1) / kLanes<T>;
}

// Contiguous rows: whole tiles, and an odd number of them, so that neighbors do not share the sets of a cache.
template <class T>
DG_INLINE int64_t row_size(int64_t columns) {
  return (groups_of<T>(columns) | 1) * kLanes<T>;
}

template <class T>
DG_INLINE int64_t panel_size(int64_t rows) {
  return (rows | 1) * kLanes<T>;
}

template <class T>
DG_INLINE Tiles<T> rows_at(T* data, int64_t columns) {
  return {data, row_size<T>(columns), kLanes<T>};
}

template <class T>
DG_INLINE Tiles<T> panels_at(T* data, int64_t rows) {
  return {data, kLanes<T>, panel_size<T>(rows)};
}

// Enough for either.
template <class T>
DG_INLINE int64_t tiles_size(int64_t rows, int64_t columns) {
  const int64_t in_rows = rows * row_size<T>(columns), in_panels = groups_of<T>(columns) * panel_size<T>(rows);
  return in_rows > in_panels ? in_rows : in_panels;
}

// What a product is stored over: nothing, or what is added to it, as it is or scaled.
enum class Over { nothing, there, scaled };

// Inner indices a panel's part has, which then stays in the first-level cache.
template <class T>
constexpr int64_t kPanelRows = sizeof(T) == 8 ? 256 : 512;

// out[r] (+)= sum_k a[r, k] b[k] for R rows and one tile.  What is there is added last, so that many small terms are
// not each rounded to its size.
template <class T, int R, Over S>
DG_INLINE void multiply_rows(const T* a, int64_t a_row, const T* b, int64_t inner, T* out, int64_t out_row, T scale) {
  Vec<T> acc[R][kVectors] = {};
  add_rows_times(a, a_row, b, inner, acc);
  // Not known before this point: a vector of it would take a register from the loop, and put an operand on the stack.
  asm volatile("" : "+m"(scale));
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v) {
      T* const to = out + r * out_row + v * kWidth<T>;
      if (S == Over::there) acc[r][v] += load(to);
      if (S == Over::scaled) acc[r][v] = fma(splat(scale), load(to), acc[r][v]);
      store(to, acc[r][v]);
    }
}

template <class T, int R, Over S>
void multiply_last_rows(int64_t rows, const T* a, int64_t a_row, const T* b, int64_t inner, T* out, int64_t out_row,
                        T scale) {
  if constexpr (R > 0) {
    if (rows == R)
      multiply_rows<T, R, S>(a, a_row, b, inner, out, out_row, scale);
    else
      multiply_last_rows<T, R - 1, S>(rows, a, a_row, b, inner, out, out_row, scale);
  }
}

template <class T, Over S>
void multiply_part(const Tiles<T>& a, int64_t rows, const Tiles<T>& b, int64_t inner, int64_t groups,
                   const Tiles<T>& out, T scale) {
  for (int64_t g = 0; g < groups; ++g) {
    const T* panel = tile(b, 0, g);
    int64_t r = 0;
    for (; r + kRows <= rows; r += kRows)
      multiply_rows<T, kRows, S>(tile(a, r, 0), a.row, panel, inner, tile(out, r, g), out.row, scale);
    if (r < rows)
      multiply_last_rows<T, kRows - 1, S>(rows - r, tile(a, r, 0), a.row, panel, inner, tile(out, r, g), out.row,
                                          scale);
  }
}

// out (+)= a b, with a in contiguous rows and b in panels.  The terms of every element are added in one order, so that
// its bits depend on nothing else.
template <class T>
void multiply_tiles(const Tiles<T>& a, int64_t rows, const Tiles<T>& b, int64_t inner, int64_t groups,
                    const Tiles<T>& out, Over over, T scale) {
  for (int64_t k = 0; k < inner || k == 0; k += kPanelRows<T>) {
    const int64_t n = smaller(kPanelRows<T>, inner - k);
    const Tiles<T> some{a.data + k, a.row, a.group}, part{b.data + k * b.row, b.row, b.group};
    if (k > 0)
      multiply_part<T, Over::there>(some, rows, part, n, groups, out, scale);
    else if (over == Over::scaled)
      multiply_part<T, Over::scaled>(some, rows, part, n, groups, out, scale);
    else
      multiply_part<T, Over::nothing>(some, rows, part, n, groups, out, scale);
  }
}

}  // namespace
