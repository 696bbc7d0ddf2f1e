// What the layer kernels share: scratch, the chunks of the hidden dimension, and packed blocks of weights.
#pragma once

#include "stack/columns.hpp"
#include "stack/hidden.hpp"

namespace {

using depthgauge::Stop;
using depthgauge::stack::kOutput;
using depthgauge::stack::kPost;
using depthgauge::stack::kPre;
using depthgauge::stack::Layer;
using depthgauge::stack::Tape;

// Hidden units a chunk: the packed blocks of a chunk should stay in the second-level cache while every group of a
// call passes through them.  A whole number of cache lines, and chunks of nearly equal size.
template <class T>
DG_INLINE int64_t chunk_size(const Equation& eq) {
  constexpr int64_t kBytes = 256 << 10, unit = kLanes<T>;
  const int64_t matrices = eq.branch == Branch::gated ? 3 : 2;
  int64_t fit = kBytes / (matrices * static_cast<int64_t>(sizeof(T)) * (eq.width > 0 ? eq.width : 1));
  if (fit < unit) fit = unit;
  const int64_t chunks = (eq.hidden + fit - 1) / fit;
  if (chunks <= 1) return eq.hidden;
  return (((eq.hidden + chunks - 1) / chunks + unit - 1) / unit) * unit;
}

// The same for a small batch, which reads each weight once: long runs of its rows, and hidden units that stay in the
// caches.
DG_INLINE int64_t small_batch_chunk(const Equation& eq) { return smaller(eq.hidden, 1024); }

// Whether the groups of a call hold a small batch in all.
template <class Job>
DG_INLINE bool is_small_batch(const Job* jobs, int64_t count) {
  int64_t examples = 0;
  for (int64_t g = 0; g < count; ++g) examples += jobs[g].examples;
  return examples <= kSmallBatch;
}

DG_INLINE int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// What the chunk after [j0, j0 + chunk) reads, of the next layer after the last chunk, to be fetched while `jobs`
// groups pass through this chunk.
template <class T>
DG_INLINE Prefetch fetch_next(const Equation& eq, const Layer<T>& layer, int64_t j0, int64_t chunk, int64_t jobs) {
  const int64_t d = eq.width, m = eq.hidden;
  const bool last = j0 + chunk >= m;
  const int64_t from = last ? 0 : j0 + chunk, n = smaller(chunk, m - from);
  const T* const up = last ? layer.next_up : layer.up;
  const T* const gate = last ? layer.next_gate : layer.gate;
  const T* const down = last ? layer.next_down : layer.down;
  Prefetch prefetch;
  if (up) prefetch.add_weights(up + from, m, d, n);
  if (gate) prefetch.add_weights(gate + from, m, d, n);
  if (down) prefetch.add_weights(down + from * d, d, n, d);
  prefetch.spread(jobs * (steps_of(n, d) * (gate ? 2 : 1) + steps_of(d, n) * (down ? 1 : 0)));
  return prefetch;
}

// Scratch for one call, cut from one aligned block.  Every part is a whole number of cache lines.
template <class T>
struct Scratch {
  T* next;
  DG_INLINE T* take(int64_t elements) {
    T* p = next;
    next += padded(elements);
    return p;
  }
  DG_INLINE T* take_group(int64_t features) { return take(features * kLanes<T>); }
};

// Rows are read in place when there are few of them at a time; more would share the sets of the first-level cache.
constexpr bool kRowsInPlace = kRows <= 6;

template <class T>
DG_INLINE int64_t packed_rows_stride(int64_t inner) {
  return padded(inner) + kLanes<T>;
}

// What `Columns` needs of one matrix for a small batch.
template <class T>
DG_INLINE int64_t small_batch_sums(const Equation& eq) {
  const int64_t chunk = small_batch_chunk(eq);
  return padded(kSmallBatch * sums_size<T>(chunk > eq.width ? chunk : eq.width));
}

// The largest scratch of the three kernels, in elements: two buffers of states a job, and four chunks of hidden units
// with three sets of packed blocks, or two with three matrices' sums.
template <class T>
int64_t layer_scratch(const Equation& eq, int64_t jobs) {
  const int64_t d = eq.width, chunk = chunk_size<T>(eq);
  const int64_t block = padded(packed_size<T>(d, chunk)) + padded(packed_size<T>(chunk, d)) +
                        padded(chunk * packed_rows_stride<T>(d)) + padded(d * packed_rows_stride<T>(chunk));
  const int64_t large = 4 * padded(chunk * kLanes<T>) + 3 * block;
  const int64_t small = 2 * padded(small_batch_chunk(eq) * kLanes<T>) + 3 * small_batch_sums<T>(eq);
  return jobs * 2 * padded(d * kLanes<T>) + (large > small ? large : small) + 64;
}

// Memory for the columns of up, gate and down, chunk after chunk.
template <class T>
DG_INLINE void take_columns(const Equation& eq, int64_t chunk, bool small_batch, Scratch<T>& scratch, T* (&memory)[3]) {
  const int64_t d = eq.width;
  memory[0] = scratch.take(small_batch ? small_batch_sums<T>(eq) : packed_size<T>(d, chunk));
  memory[1] = scratch.take(small_batch ? small_batch_sums<T>(eq) : packed_size<T>(d, chunk));
  memory[2] = scratch.take(small_batch ? small_batch_sums<T>(eq) : packed_size<T>(chunk, d));
}

// Those of hidden units [j0, j0 + n), as far as the branch has them.
template <class T>
struct ChunkColumns {
  Columns<T> up, gate, down;
  DG_INLINE ChunkColumns(const Equation& eq, const Layer<T>& layer, int64_t j0, int64_t n, bool small_batch,
                         T* const (&memory)[3])
      : up(layer.up + j0, eq.hidden, eq.width, n, small_batch, memory[0]),
        gate(eq.branch == Branch::gated ? layer.gate + j0 : nullptr, eq.hidden, eq.width, n, small_batch, memory[1]),
        down(eq.branch == Branch::linear ? nullptr : layer.down + j0 * eq.width, eq.width, n, eq.width, small_batch,
             memory[2]) {}
};

template <class T>
DG_INLINE void set_zero(T* group, int64_t features) {
  for (int64_t k = 0; k < features; ++k) store_row(group + k * kLanes<T>, Row<T>{});
}

// Whether anything happens at a place: a norm, or a gain or shift without one.
template <class T>
DG_INLINE bool active(const Equation& eq, const Layer<T>& layer, depthgauge::stack::Place place) {
  return eq.norm[place] != Norm::none || layer.gain[place] || layer.shift[place];
}

// y = N(x) at one place, from the moments of x; the factors stay on the tape.
template <class T>
void norm_at(const Equation& eq, const Layer<T>& layer, depthgauge::stack::Place place, const T* x,
             const Moments& moments, NormFactors<T>* keep, T* y) {
  if (eq.width == 0) return;
  NormFactors<T> local;
  NormFactors<T>* factors = keep ? keep : &local;
  if (has_factors(eq.norm[place])) find_factors(eq.norm[place], eq.eps, x, eq.width, moments, factors);
  apply_norm(eq.norm[place], eq, x, factors, layer.gain[place], layer.shift[place], y);
}

// A term of the residual sum; a scale of 0 leaves it out, infinities and all.
template <class T>
struct Term {
  T scale;
  Row<T> factor;
  DG_INLINE explicit Term(T s) : scale(s), factor(splat_row(s)) {}
  DG_INLINE Row<T> operator()(Row<T> x) const { return scale == 0 ? Row<T>{} : factor * x; }
};

// scale times a row times the gain of a place, if it has one: a norm's derivative in reverse.
template <class T>
struct GainBefore {
  Row<T> scale;
  const T* gain;
  DG_INLINE Row<T> operator()(int64_t k, Row<T> r) const {
    r = r * scale;
    return gain ? r * splat_row(gain[k]) : r;
  }
};

}  // namespace
