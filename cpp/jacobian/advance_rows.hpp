// Tangents through one linearized block.
#pragma once

#include "jacobian/linearize.hpp"

namespace {

using depthgauge::jacobian::Tangents;

// Rows [first, last) of A C + skip I.
template <class T>
void form_rows(const Equation& eq, const Linearized<T>& at, int64_t first, int64_t last, T skip, const Tiles<T>& to) {
  const int64_t d = eq.width, groups = groups_of<T>(d);
  if (eq.branch == Branch::linear) {
    for (int64_t k = first; k < last; ++k) {
      for (int64_t g = 0; g < groups; ++g) store_row(tile(to, k, g), Row<T>{});
      const T* const from = tile(at.a, k, 0);
      for (int64_t i = 0; i < at.live; ++i) {
        const int64_t j = at.units[i];
        tile(to, k, j / kLanes<T>)[j % kLanes<T>] = from[i];
      }
      if (at.norm[kOutput].active) apply_row_norm(at.norm[kOutput], d, tile(to, k, 0), to.group);
    }
  } else {
    for (int64_t r = first; r < last; r += kRowBlock) {
      const Tiles<T> rows{tile(at.a, r, 0), at.a.row, at.a.group}, result{tile(to, r, 0), to.row, to.group};
      multiply_tiles(rows, smaller(kRowBlock, last - r), at.c, at.live, groups, result, Over::nothing, T(1));
    }
  }
  if (skip != 0)
    for (int64_t k = first; k < last; ++k) tile(to, k, k / kLanes<T>)[k % kLanes<T>] += skip;
}

template <class T>
void normalize_rows(const Equation& eq, const RowNorm<T>& post, const Tiles<T>& rows, int64_t first, int64_t last) {
  if (!post.active) return;
  for (int64_t r = first; r < last; ++r) apply_row_norm(post, eq.width, tile(rows, r, 0), rows.group);
}

// The largest magnitude of rows; NaNs aside.
template <class T>
T top_of_rows(const Equation& eq, const Tiles<T>& rows, int64_t first, int64_t last) {
  Row<T> top = {};
  for (int64_t r = first; r < last; ++r)
    for (int64_t g = 0; g < groups_of<T>(eq.width); ++g) {
      const Row<T> x = load_row(tile(rows, r, g));
      for (int i = 0; i < kVectors; ++i) top.v[i] = max_or_second(abs(x.v[i]), top.v[i]);
    }
  T found = 0;
  for (int i = 0; i < kVectors; ++i)
    for (int l = 0; l < kWidth<T>; ++l) found = top.v[i][l] > found ? static_cast<T>(top.v[i][l]) : found;
  return found;
}

// In two steps, each of them a power of two in range.
template <class T>
void scale_rows(const Equation& eq, const Tiles<T>& rows, int64_t first, int64_t last, int exponent) {
  const int half = exponent / 2;
  using S = typename Types<T>::Scalar;
  const Row<T> one = splat_row(power_of_two<T>(static_cast<S>(half)));
  const Row<T> other = splat_row(power_of_two<T>(static_cast<S>(exponent - half)));
  for (int64_t r = first; r < last; ++r)
    for (int64_t g = 0; g < groups_of<T>(eq.width); ++g) {
      T* const x = tile(rows, r, g);
      store_row(x, load_row(x) * one * other);
    }
}

template <class T>
int64_t row_workspace(const Equation& eq) {
  const int64_t d = eq.width;
  return kRowBlock * row_size<T>(d);
}

// skip x, all of it 0 where the skip path is left out.
template <class T>
DG_INLINE Row<T> skipped(T skip, Row<T> x) {
  return skip == 0 ? Row<T>{} : splat_row(skip) * x;
}

// A block of rows of one part, its branch taking `from`.
template <class T>
void advance_row_block(const Equation& eq, const Linearized<T>& at, const Tiles<T>& from, const Tiles<T>& to,
                       int64_t rows, bool orders, T* workspace) {
  const int64_t d = eq.width, groups = groups_of<T>(d);
  const Over over = at.skip == 0 ? Over::nothing : Over::scaled;
  if (at.form == Form::whole && orders) {
    multiply_tiles(from, rows, at.product, d, groups, to, over, at.skip);
    return;
  }
  if (at.form == Form::whole) {
    const Tiles<T> next = rows_at(workspace, d);
    multiply_tiles(from, rows, at.product, d, groups, next, Over::nothing, T(1));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t g = 0; g < groups; ++g)
        store_row(tile(to, r, g), skipped(at.skip, load_row(tile(to, r, g))) + load_row(tile(next, r, g)));
    return;
  }
  const Tiles<T> hidden = rows_at(workspace, at.live);
  multiply_tiles(from, rows, at.a, d, groups_of<T>(at.live), hidden, Over::nothing, T(1));
  if (at.form == Form::factors) {
    multiply_tiles(hidden, rows, at.c, at.live, groups, to, over, at.skip);
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    T* const row = tile(to, r, 0);
    for (int64_t g = 0; g < groups; ++g)
      store_row(row + g * kLanes<T>, skipped(at.skip, load_row(row + g * kLanes<T>)));
    const T* const z = tile(hidden, r, 0);
    for (int64_t i = 0; i < at.live; ++i) row[at.units[i]] += z[i];
  }
}

template <class T>
T advance_rows(const Equation& eq, const Linearized<T>& at, const Tangents<T>& t, int64_t first, int64_t last,
               T* workspace) {
  T top = 0;
  for (int64_t r = first; r < last; r += kRowBlock) {
    const int64_t rows = smaller(kRowBlock, last - r);
    for (int64_t k = t.parts - 1; k >= 0; --k) {
      const auto part = [&](int64_t of) DG_INLINE_LAMBDA {
        return Tiles<T>{t.part.data + of * t.part_stride + r * t.part.row, t.part.row, t.part.group};
      };
      const Tiles<T> to = part(k);
      if (t.orders && k == 0) {
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t g = 0; g < groups_of<T>(eq.width); ++g)
            store_row(tile(to, i, g), skipped(at.skip, load_row(tile(to, i, g))));
      } else {
        advance_row_block(eq, at, part(t.orders ? k - 1 : k), to, rows, t.orders, workspace);
      }
      normalize_rows(eq, at.norm[kPost], to, 0, rows);
      const T here = top_of_rows(eq, to, 0, rows);
      top = here > top ? here : top;
    }
  }
  return top;
}

}  // namespace
