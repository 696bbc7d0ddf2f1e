// Products of a weight matrix with one group of examples, and the packing of weights for them.
//
// Examples sit in the lanes of a vector and the weights are broadcast, so that forward and reverse mode read the
// same row-major matrix and no product needs a transpose.  Every lane accumulates over the inner index in order,
// one fused step a term, whatever the blocking: the bits do not depend on it.
#pragma once

#include "common/simd.hpp"

namespace {

// Outputs of one microkernel call: as many as keep kRows * kVectors accumulators, kVectors operands and a
// broadcast in registers.
#if defined(__AVX512F__)
constexpr int kRows = 16;
#elif defined(__AVX2__)
constexpr int kRows = 6;
#elif defined(__aarch64__)
constexpr int kRows = 5;
#else
constexpr int kRows = 2;
#endif

// The inner index is split so that this many rows of a group, and of a panel, take half of the first-level cache.
constexpr int64_t kInner = 128;

DG_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Memory that comes next, brought towards the core a few lines at a time between microkernels: blocks of
// weights for the next chunk, and what one group is about to read from or write to the tape.  Left to the hardware,
// every short row of a block, and every line of a fresh tape, would begin with a wait for memory.
class Prefetch {
 public:
  template <class T>
  DG_INLINE void add_weights(const T* w, int64_t stride, int64_t rows, int64_t columns) {
    if (!w || rows <= 0 || columns <= 0) return;
    constexpr auto size = static_cast<int64_t>(sizeof(T));
    blocks_[used_++] = {reinterpret_cast<const char*>(w), rows, stride * size, columns * size};
    lines_ += rows * (columns * size / kGroupBytes + 1);
  }
  // Spreads the weights over this many steps.
  DG_INLINE void spread(int64_t steps) { pace_ = pace(lines_, steps); }

  // Asks for `lines` of one group within this many steps; what was left of the last such request is dropped.
  DG_INLINE void group(const void* start, int64_t lines, int64_t steps) {
    line_ = static_cast<const char*>(start);
    left_ = start ? lines : 0;
    group_pace_ = pace(left_, steps);
  }

  DG_INLINE void step() {
    for (int i = 0; i < pace_ && current_ < used_; ++i) {
      Rows& b = blocks_[current_];
      __builtin_prefetch(b.row + column_, 0, 2);
      column_ += kGroupBytes;
      if (column_ < b.width) continue;
      column_ = 0;
      b.row += b.stride;
      if (--b.count == 0) ++current_;
    }
    for (int i = 0; i < group_pace_ && left_ > 0; ++i, --left_, line_ += kGroupBytes) __builtin_prefetch(line_, 1, 3);
  }

 private:
  struct Rows {
    const char* row;
    int64_t count, stride, width;
  };
  static DG_INLINE int pace(int64_t lines, int64_t steps) {
    return static_cast<int>(lines / (steps > 0 ? steps : 1) + 1);
  }
  Rows blocks_[3] = {};
  int used_ = 0, current_ = 0, pace_ = 0, group_pace_ = 0;
  int64_t column_ = 0, lines_ = 0, left_ = 0;
  const char* line_ = nullptr;
};

// Microkernel calls of a product, each a step of the prefetch.
DG_INLINE int64_t steps_of(int64_t outputs, int64_t inner) { return outputs / kRows * ((inner + kInner - 1) / kInner); }

// acc[r] += sum_k weight(r, k) x[k], `Steps` of the inner index between two branches.  Beside its multiply-adds a step
// only loads; but on a core that runs another thread as well instructions are scarcer than multipliers, and each that a
// loop saves counts.  With tall blocks the compiler would put accumulators on the stack for it.
template <class T, int R, int Steps, class Weight>
DG_INLINE void add_products(Weight weight, const T* x, int64_t inner, Vec<T> (&acc)[R][kVectors]) {
  const auto step = [&](int64_t k) DG_INLINE_LAMBDA {
    Vec<T> xv[kVectors];
    for (int v = 0; v < kVectors; ++v) xv[v] = load(x + k * kLanes<T> + v * kWidth<T>);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec<T> b = splat(weight(r, k));
      for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(b, xv[v], acc[r][v]);
    }
  };
  int64_t k = 0;
  for (; k + Steps <= inner; k += Steps) {
#pragma GCC unroll 4
    for (int i = 0; i < Steps; ++i) step(k + i);
  }
  for (; k < inner; ++k) step(k);
}

// The same with rows of weights as they lie, `stride` apart.
template <class T, int R>
DG_INLINE void add_rows_times(const T* w, int64_t stride, const T* x, int64_t inner, Vec<T> (&acc)[R][kVectors]) {
  // More steps cost more in addresses than they save.
  const T* row[R];
  for (int r = 0; r < R; ++r) row[r] = w + r * stride;
  add_products<T, R, kRows <= 6 ? 2 : 1>([&](int r, int64_t k) DG_INLINE_LAMBDA { return row[r][k]; }, x, inner, acc);
}

// The same with a panel: kRows weights for every inner index.
template <class T, int R>
DG_INLINE void add_panel_times(const T* w, const T* x, int64_t inner, Vec<T> (&acc)[R][kVectors]) {
  const auto weight = [w](int r, int64_t k) DG_INLINE_LAMBDA { return w[k * kRows + r]; };
  add_products<T, R, kRows <= 6 ? 4 : 1>(weight, x, inner, acc);
}

// How a block of weights lies: panels of kRows outputs, inner index by inner index, one `stride` after the other; or
// rows of a matrix `stride` apart.
enum class Layout { panels, rows };

// c[r] (+)= sum_k w(r, k) x[k] for R outputs.
template <class T, int R, Layout layout, bool Accumulate>
DG_INLINE void microkernel(const T* w, int64_t stride, const T* x, int64_t inner, T* c) {
  Vec<T> acc[R][kVectors];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v) acc[r][v] = Accumulate ? load(c + r * kLanes<T> + v * kWidth<T>) : Vec<T>{};
  if constexpr (layout == Layout::panels)
    add_panel_times(w, x, inner, acc);
  else
    add_rows_times(w, stride, x, inner, acc);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v) store(c + r * kLanes<T> + v * kWidth<T>, acc[r][v]);
}

// The last block of outputs, of fewer.
template <class T, int R, Layout layout, bool Accumulate>
void remainder(int64_t rows, const T* w, int64_t stride, const T* x, int64_t inner, T* c) {
  if constexpr (R > 0) {
    if (rows == R)
      microkernel<T, R, layout, Accumulate>(w, stride, x, inner, c);
    else
      remainder<T, R - 1, layout, Accumulate>(rows, w, stride, x, inner, c);
  }
}

template <class T, Layout layout, bool Accumulate>
void multiply_block(const T* w, int64_t stride, int64_t outputs, const T* x, int64_t inner, T* c, Prefetch& prefetch) {
  const int64_t next = layout == Layout::panels ? stride : kRows * stride;
  int64_t j = 0;
  for (; j + kRows <= outputs; j += kRows, w += next) {
    prefetch.step();
    microkernel<T, kRows, layout, Accumulate>(w, stride, x, inner, c + j * kLanes<T>);
  }
  if (j < outputs) remainder<T, kRows - 1, layout, Accumulate>(outputs - j, w, stride, x, inner, c + j * kLanes<T>);
}

// c[j] (+)= sum_k x[k] w(j, k), where panels hold columns of a matrix: x W, and rows: W x.
template <class T, Layout layout>
void multiply_group(const T* w, int64_t stride, int64_t inner, int64_t outputs, const T* x, T* c, bool accumulate,
                    Prefetch& prefetch) {
  for (int64_t k = 0; k < inner || k == 0; k += kInner, accumulate = true) {
    const int64_t n = smaller(kInner, inner - k);
    const T* const from = w + k * (layout == Layout::panels ? kRows : 1);
    if (accumulate)
      multiply_block<T, layout, true>(from, stride, outputs, x + k * kLanes<T>, n, c, prefetch);
    else
      multiply_block<T, layout, false>(from, stride, outputs, x + k * kLanes<T>, n, c, prefetch);
  }
}

// Panels are padded, so that they do not share the sets of a cache.
template <class T>
DG_INLINE int64_t panel_stride(int64_t inner) {
  return inner * kRows + kLanes<T>;
}

template <class T>
DG_INLINE int64_t packed_size(int64_t inner, int64_t outputs) {
  return (outputs + kRows - 1) / kRows * panel_stride<T>(inner);
}

// Copies columns [0, outputs) of a row-major block into panels.  Whole vectors are stored where a panel is narrower
// than a vector's multiple; what spills is overwritten by the next row, or lands in the panel's padding.
template <class T>
void pack_columns(const T* w, int64_t stride, int64_t inner, int64_t outputs, T* packed) {
  constexpr int spill = (kRows + kWidth<T> - 1) / kWidth<T> * kWidth<T>;
  const int64_t panel = panel_stride<T>(inner);
  for (int64_t k = 0; k < inner; ++k) {
    const T* row = w + k * stride;
    T* out = packed + k * kRows;
    int64_t j = 0;
    for (; j + spill <= outputs; j += kRows, out += panel)
      for (int i = 0; i < spill; i += kWidth<T>) store(out + i, load(row + j + i));
    for (; j < outputs; j += kRows, out += panel)
      for (int64_t i = 0; i < smaller(kRows, outputs - j); ++i) out[i] = row[j + i];
  }
}

// Copies a block of rows to a stride that does not alias in the caches.
template <class T>
void pack_rows(const T* w, int64_t stride, int64_t rows, int64_t inner, T* packed, int64_t packed_stride) {
  for (int64_t i = 0; i < rows; ++i) {
    const T* from = w + i * stride;
    T* to = packed + i * packed_stride;
    int64_t k = 0;
    for (; k + kWidth<T> <= inner; k += kWidth<T>) store(to + k, load(from + k));
    for (; k < inner; ++k) to[k] = from[k];
  }
}

}  // namespace
