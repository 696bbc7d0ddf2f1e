// Singular values of bidiagonal matrices by the differential quotient-difference algorithm with shifts, one matrix a
// lane: Fernando and Parlett, Accurate singular values and differential qd algorithms, Numer. Math. 67 (1994); Parlett
// and Marques, An implementation of the dqds algorithm (positive case), Linear Algebra Appl. 309 (2000), which is
// LAPACK Working Note 155 and LAPACK's dlasq2 to dlasq5, whose names are used here.
//
// All lanes sweep in step and decide alone: each has its own shift, its own deflation and its own end, so that the
// neighbors of a matrix never change a bit of its result.  The matrices are aligned at their last rows.  A lane that
// has found a value moves down by one row on the way through the next sweep, and the rows above its first one are
// pads: so large that a shift leaves them as they are, and a power of two, so that the first true row starts exactly.
#pragma once

#include "common/simd.hpp"
#include "spectra/dqds_shift.hpp"
#include "spectra/dqds_split.hpp"
#include "spectra/dqds_state.hpp"
#include "spectra/dqds_sweep.hpp"
#include "spectra/singular_kernels.hpp"

namespace {

// A lane that finds nothing for so long is searched for a place where it falls apart.
constexpr int kDqdsIdle = 12;
constexpr int kDqdsRefusals = 4;

// Insertion, for the values come nearly in order.
template <class T>
DG_INLINE void sort_descending(T* values, int64_t n, int64_t stride) {
  for (int64_t i = 1; i < n; ++i) {
    const T value = values[i * stride];
    int64_t j = i;
    for (; j > 0 && values[(j - 1) * stride] < value; --j) values[j * stride] = values[(j - 1) * stride];
    values[j * stride] = value;
  }
}

// V vectors of lanes.
template <class T, int V>
class Dqds {
 public:
  static constexpr int W = kWidth<T>;
  static constexpr int64_t R = V * W;
  using Scalar = typename Types<T>::Scalar;

  DG_INLINE Dqds(T* values, int64_t n, T* workspace)
      : values_(values), n_(n), end_(n + kDqdsPads), rows_(workspace, n, R) {}

  DG_INLINE void run(const T* off) {
    for (int v = 0; v < V; ++v) enter(off + v * W, v);
    const DqdsSplits<T, V> splits(rows_, end_);
    const int64_t cap = 30 * n_ + 60;
    int64_t first = kDqdsPads;
    for (int64_t sweep = 0; sweep < cap && first < end_; ++sweep) {
      from_ = first < end_ - 3 ? first : end_ - 3;
      dqds_sweep<T, V>(rows_.q[0], rows_.e[0], rows_.q[1], rows_.e[1], from_, end_, lanes_);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) judge(v);
      deflate();
      // Long chains of few operations: those of all vectors overlap, since nothing branches.
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) choose_shift(v);
      swap(rows_.q[0], rows_.q[1]);
      swap(rows_.e[0], rows_.e[1]);
      Int<T> most{};
      for (int v = 0; v < V; ++v) {
        split_idle(v, splits);
        most = lanes_[v].left > most ? lanes_[v].left : most;
      }
      Scalar rows = 0;
      for (int i = 0; i < W; ++i) rows = most[i] > rows ? static_cast<Scalar>(most[i]) : rows;
      first = end_ - rows;
      for (int v = 0; v < V; ++v) first = resume(v, first, splits);
    }
  }

  DG_INLINE void leave(bool* converged) {
    for (int v = 0; v < V; ++v) {
      const Int<T> done = (lanes_[v].left == Int<T>{}) & (lanes_[v].aside == Int<T>{});
      Vec<T> scale;
      for (int i = 0; i < W; ++i) {
        scale[i] = power_of_two<T>(lanes_[v].power[i] / 2);
        converged[v * W + i] = done[i];
        if (done[i]) sort_descending(values_ + v * W + i, n_, R);
      }
      for (int64_t j = 0; j < n_; ++j) {
        T* const at = values_ + j * R + v * W;
        const Vec<T> square = load(at);
        store(at, select<T>(done & (square > splat(16 * DqdsLimits<T>::kFloor)), scale * sqrt(square), Vec<T>{}));
      }
    }
  }

 private:
  // One vector of lanes from squares of the entries.
  DG_INLINE void enter(const T* off, int v) {
    const Vec<T> zero{};
    const T* const diagonal = values_ + v * W;
    DqdsLanes<T>& lane = lanes_[v];
    // Of all entries: where rows are small that come before large ones, the large numbers are off the diagonal.
    Vec<T> qmax = load(diagonal + (n_ - 1) * R), scale;
    for (int64_t j = 0; j + 1 < n_; ++j)
      qmax = max_or_second(load(diagonal + j * R), max_or_second(load(off + j * R), qmax));
    // To a largest square in [1, 4), by an even power of two: values are then scaled by a power of two.
    for (int i = 0; i < W; ++i) {
      lane.power[i] = qmax[i] > 0 ? exponent_of<T>(qmax[i]) & ~Scalar{1} : Scalar{0};
      scale[i] = power_of_two<T>(static_cast<Scalar>(-lane.power[i]));
    }
    lane.negligible = scale * qmax * splat(DqdsLimits<T>::kEps * DqdsLimits<T>::kEps);
    for (int b = 0; b < 2; ++b)
      for (int64_t j = 0; j < kDqdsPads; ++j) {
        store(rows_.q[b] + j * R + v * W, splat(DqdsLimits<T>::kPad));
        store(rows_.e[b] + j * R + v * W, zero);
      }
    // A matrix whose rows grow downwards is flipped, as in dlasq2, for values converge from the small end.
    const Int<T> flip = load(diagonal) < load(diagonal + (n_ - 1) * R);
    for (int64_t j = 0; j < n_; ++j) {
      const int64_t at = (kDqdsPads + j) * R + v * W;
      store(rows_.q[0] + at, scale * select<T>(flip, load(diagonal + (n_ - 1 - j) * R), load(diagonal + j * R)));
      store(rows_.e[0] + at,
            j + 1 < n_ ? scale * select<T>(flip, load(off + (n_ - 2 - j) * R), load(off + j * R)) : zero);
    }
    lane.tau = lane.sigma = lane.desig = zero;
    lane.ceiling = splat(DqdsLimits<T>::kPad);
    lane.g = splat(T(0.25));
    lane.moves = lane.moved = lane.refused = lane.idle = lane.aside = Int<T>{};
    lane.left = splat_int<T>(static_cast<Scalar>(n_));
  }

  // What the last sweep wrote, so many rows from the end.
  DG_INLINE Vec<T> q(int v, int64_t back) const { return load(rows_.q[1] + (end_ - back) * R + v * W); }
  DG_INLINE Vec<T> e(int v, int64_t back) const { return load(rows_.e[1] + (end_ - back) * R + v * W); }

  // Accepts a sweep or refuses it, and looks for values at its end (dlasq3).
  DG_INLINE void judge(int v) {
    const Vec<T> zero{};
    DqdsLanes<T>& lane = lanes_[v];
    const Int<T> refused = lane.dmin < zero, accepted = (lane.left > Int<T>{}) & ~refused;
    // sigma += tau, keeping what is lost (Knuth's two-sum).
    const Vec<T> tau = select<T>(accepted, lane.tau, zero);
    const Vec<T> sum = lane.sigma + tau, part = sum - lane.sigma;
    lane.desig += (lane.sigma - (sum - part)) + (tau - part);
    lane.sigma = sum;
    const Vec<T> tolerance = splat(T(64) * DqdsLimits<T>::kEps * DqdsLimits<T>::kEps);
    const Vec<T> limit = max_or_second(tolerance * (lane.sigma + lane.dn), lane.negligible);
    const Int<T> single = accepted & (e(v, 2) <= limit), pair = accepted & ~single & (e(v, 3) <= limit);
    const Int<T> found = single | pair;
    store(value_ + v * W, lane.sigma + (lane.dn + lane.desig));
    refused_ |= uint64_t{bits(refused)} << v * W;
    found_ |= uint64_t{bits(found)} << v * W;
    pairs_ |= uint64_t{bits(pair)} << v * W;
    lane.moved = lane.moves;
    lane.left += found;  // true is -1
    lane.moves = found;
    lane.refused = (lane.refused - refused) & refused;
    lane.idle = (lane.idle + splat_int<T>(1)) & ~found;
    lane.ceiling = select<T>(refused, min_or_second(lane.ceiling, lane.tau), lane.ceiling - tau);
    lane.ceiling = select<T>(found, splat(DqdsLimits<T>::kPad), lane.ceiling);
    lane.g = select<T>(found, splat(T(0.25)), lane.g);
  }

  // What only some sweeps have to do, for all vectors at once: few branches, since none of them can be foreseen.
  DG_INLINE void deflate() {
    if (pairs_)
      for (int v = 0; v < V; ++v) {
        // The last two rows are by themselves: both values at once, one of them to be found by the next sweep.
        DqdsLanes<T>& lane = lanes_[v];
        const Int<T> pair = from_bits<T>(static_cast<unsigned>(pairs_ >> v * W) & ((1u << W) - 1));
        const Pair<T> both = last_two<T>(q(v, 2), e(v, 2), lane.dn);
        store(value_ + v * W, select<T>(pair, lane.sigma + (both.lower + lane.desig), load(value_ + v * W)));
        lane.dn1 = select<T>(pair, both.upper, lane.dn1);
        store(rows_.q[1] + (end_ - 2) * R + v * W, select<T>(pair, both.upper, q(v, 2)));
        store(rows_.e[1] + (end_ - 3) * R + v * W, select<T>(pair, Vec<T>{}, e(v, 3)));
      }
    for (; found_; found_ &= found_ - 1) {
      const int i = __builtin_ctzll(found_);
      const DqdsLanes<T>& lane = lanes_[i / W];
      values_[(lane.left[i % W] + lane.aside[i % W]) * R + i] = value_[i];
    }
    for (; refused_; refused_ &= ~(((uint64_t{1} << W) - 1) << __builtin_ctzll(refused_) / W * W)) {
      const int v = __builtin_ctzll(refused_) / W;
      const Int<T> refused = from_bits<T>(static_cast<unsigned>(refused_ >> v * W) & ((1u << W) - 1));
      dqds_restore<T, V>(rows_.q[0] + v * W, rows_.e[0] + v * W, rows_.q[1] + v * W, rows_.e[1] + v * W, from_, end_,
                         refused, lanes_[v].moved);
    }
    pairs_ = 0;
  }

  // The next tau, from the last rows of what is left.
  DG_INLINE void choose_shift(int v) {
    const Vec<T> zero{};
    DqdsLanes<T>& lane = lanes_[v];
    const Int<T> found = lane.moves, refused = lane.refused > Int<T>{};
    const Vec<T> dmin = select<T>(found, lane.dmin1, lane.dmin);
    Vec<T> next = dqds_shift<T>(lane, select<T>(found, lane.dn1, lane.dn), select<T>(found, lane.dn2, lane.dn1), dmin,
                                select<T>(found, lane.dmin2, lane.dmin1), select<T>(found, e(v, 3), e(v, 2)),
                                select<T>(found, e(v, 4), e(v, 3)), select<T>(found, q(v, 3), q(v, 2)),
                                select<T>(found, q(v, 4), q(v, 3)));
    next = min_or_second(next, splat(T(1) - T(0x1p-6)) * lane.ceiling);
    // Not from the floor, which the next sweep would lift again, nor from pads.
    const Int<T> real = (dmin > splat(16 * DqdsLimits<T>::kFloor)) & (dmin < splat(T(0.5) * DqdsLimits<T>::kPad));
    next = select<T>(real & (next > zero), next, zero);
    // After a refused shift: where only the last row went negative (a late failure), what is missing is a good guess.
    const Vec<T> late = (lane.tau + lane.dmin) * splat(T(1) - 4 * DqdsLimits<T>::kEps);
    const Vec<T> again = select<T>((lane.dmin1 > zero) & (late > zero), late, splat(T(0.25)) * lane.tau);
    next = select<T>(refused, select<T>(lane.refused > splat_int<T>(kDqdsRefusals), zero, again), next);
    lane.g = select<T>(refused, splat(T(1) / 12), lane.g);
    lane.tau = select<T>(lane.left > Int<T>{}, next, zero);
  }

  DG_INLINE void split_idle(int v, const DqdsSplits<T, V>& splits) {
    DqdsLanes<T>& lane = lanes_[v];
    const Int<T> idle = (lane.left > splat_int<T>(1)) & (lane.idle >= splat_int<T>(kDqdsIdle));
    if (const unsigned stuck = bits(idle))
      for (int i = 0; i < W; ++i)
        if (stuck >> i & 1) splits.split(v * W + i, i, lane);
  }

  DG_INLINE int64_t resume(int v, int64_t first, const DqdsSplits<T, V>& splits) {
    DqdsLanes<T>& lane = lanes_[v];
    if (const unsigned through = bits((lane.left == Int<T>{}) & (lane.aside > Int<T>{})))
      for (int i = 0; i < W; ++i)
        if (through >> i & 1) first = splits.resume(v * W + i, i, lane, first);
    return first;
  }

  T* values_;
  int64_t n_, end_;
  int64_t from_ = 0;  // first row of the sweep at hand
  DqdsRows<T> rows_;
  DqdsLanes<T> lanes_[V];
  // Of all lanes after a sweep: a bit for each whose shift was refused, that has found a value, or found two.
  uint64_t refused_ = 0, found_ = 0, pairs_ = 0;
  T value_[R];  // the value of each that has found one
};

template <class T, int V>
__attribute__((noinline)) void dqds_lanes(T* values, const T* off, int64_t n, bool* converged, T* workspace) {
  Dqds<T, V> dqds(values, n, workspace);
  dqds.run(off);
  dqds.leave(converged);
}

}  // namespace
