// Singular values of bidiagonal matrices by the differential quotient-difference algorithm with shifts (dqds;
// Fernando and Parlett 1994, Parlett and Marques 2000), one matrix a lane.
//
// All lanes sweep in step and decide alone: each has its own shift, its own deflation and its own end, so that the
// neighbors of a matrix never change a bit of its result.  The matrices are aligned at their last rows.  A lane that
// has found a value moves down by one row on the way through the next sweep, and the rows above its first one are
// pads: so large that a shift leaves them as they are, and a power of two, so that the first true row starts exactly.
#pragma once

#include "common/simd.hpp"
#include "spectra/singular_kernels.hpp"

namespace {

template <class T>
struct DqdsLimits;
template <>
struct DqdsLimits<double> {
  static constexpr double kEps = 0x1p-53, kPad = 0x1p100, kFloor = 0x1p-900;
};
template <>
struct DqdsLimits<float> {
  static constexpr float kEps = 0x1p-24f, kPad = 0x1p40f, kFloor = 0x1p-80f;
};

// Rows above the matrix: the decisions look at the last five.
constexpr int64_t kDqdsPads = 6;
// A lane that finds nothing for so long is searched for a place where it falls apart.
constexpr int kDqdsIdle = 12;
constexpr int kDqdsRefusals = 4;

// The state of one vector of lanes between sweeps.
template <class T>
struct DqdsLanes {
  Vec<T> shift;                    // of the next sweep
  Vec<T> last, last1, last2;       // d of the last three rows
  Vec<T> least, least1, least2;    // least d of all rows, of all but the last, of all but the last two
  Vec<T> sigma, sigma_low;         // sum of the shifts, and what its rounding lost
  Vec<T> drop;                     // off-diagonals up to this are dropped
  Vec<T> ceiling;                  // a shift that was refused for what is left, less what was shifted since
  Vec<T> part;                     // of the least d, that is the next shift where nothing better is known
  Int<T> moves;                    // lanes that move down by one row in the next sweep
  Int<T> left;                     // active rows
  Int<T> moved;                    // lanes that moved in the last one
  Int<T> refused;                  // shifts refused since the last one accepted
  Int<T> idle;                     // sweeps since the last value was found
  Int<T> parked;                   // rows set aside
  typename Types<T>::Scalar power[kWidth<T>];  // of two, that the squares were divided by
};

// Memory of one call: rows of all lanes.  q and e have kDqdsPads rows before the matrix, and are there twice.
template <class T>
struct DqdsRows {
  T *q[2], *e[2];
  T *parked_q, *parked_e, *parked_sigma, *parked_low;
};

template <class T, int G>
DG_INLINE void dqds_sweep(const T* q, const T* e, T* to_q, T* to_e, int64_t first, int64_t end, DqdsLanes<T>* lanes) {
  constexpr int W = kWidth<T>;
  constexpr int64_t R = G * W;
  const Vec<T> floor = splat(DqdsLimits<T>::kFloor);
  Vec<T> d[G], least[G];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
    const T* at = q + first * R + g * W;
    d[g] = select<T>(lanes[g].moves, load(at - R), load(at)) - lanes[g].shift;
    least[g] = d[g];
    // No lane has a true row here; the next sweep may read it.
    store(to_q + (first - 1) * R + g * W, splat(DqdsLimits<T>::kPad));
    store(to_e + (first - 1) * R + g * W, Vec<T>{});
    d[g] = max_or_second(d[g], floor);
  }
  const auto step = [&](int64_t j) DG_INLINE_LAMBDA {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const int64_t at = j * R + g * W;
      const Vec<T> next = select<T>(lanes[g].moves, load(q + at), load(q + at + R));
      const Vec<T> off = select<T>(lanes[g].moves, load(e + at - R), load(e + at));
      const Vec<T> sum = d[g] + off;
      const Vec<T> t = next / sum;
      store(to_q + at, sum);
      store(to_e + at, off * t);
      d[g] = fma(d[g], t, -lanes[g].shift);
      least[g] = min_or_second(d[g], least[g]);
      d[g] = max_or_second(d[g], floor);
    }
  };
  for (int64_t j = first; j < end - 3; ++j) step(j);
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
    lanes[g].last2 = d[g];
    lanes[g].least2 = least[g];
  }
  step(end - 3);
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
    lanes[g].last1 = d[g];
    lanes[g].least1 = least[g];
  }
  step(end - 2);
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
    lanes[g].last = d[g];
    lanes[g].least = least[g];
    store(to_q + (end - 1) * R + g * W, d[g]);
  }
}

// What a refused sweep read, written over what it wrote: both buffers then hold the same for those lanes.
template <class T, int G>
__attribute__((noinline)) void dqds_restore(const T* q, const T* e, T* to_q, T* to_e, int64_t first, int64_t end,
                                            Int<T> refused, Int<T> moves) {
  constexpr int64_t R = G * kWidth<T>;
  for (int64_t j = first; j < end; ++j) {
    const int64_t at = j * R;
    const Vec<T> old_q = select<T>(moves, load(q + at - R), load(q + at));
    const Vec<T> old_e = select<T>(moves, load(e + at - R), load(e + at));
    store(to_q + at, select<T>(refused, old_q, load(to_q + at)));
    store(to_e + at, select<T>(refused, old_e, load(to_e + at)));
  }
}

// One lane's rows set aside or taken back; rare, so lane by lane.
template <class T, int G>
class DqdsParking {
 public:
  static constexpr int64_t R = G * kWidth<T>;

  DqdsParking(const DqdsRows<T>& rows, int64_t end) : rows_(rows), end_(end) {}

  // Looks for an off-diagonal that can be dropped, from the bottom; sets aside what is above it.
  __attribute__((noinline)) void split(int lane_index, int lane, DqdsLanes<T>& lanes) const {
    T *q = rows_.q[0] + lane_index, *e = rows_.e[0] + lane_index;
    lanes.idle[lane] = 0;
    const int64_t top = end_ - lanes.left[lane];
    const T tolerance = T(64) * DqdsLimits<T>::kEps * DqdsLimits<T>::kEps;
    for (int64_t j = end_ - 2; j >= top; --j) {
      const T off = e[j * R];
      if (off > lanes.drop[lane] && off > tolerance * lanes.sigma[lane]) continue;
      const int64_t rows = j - top + 1, to = lanes.parked[lane];
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t from = (top + i) * R, at = (to + i) * R + lane_index;
        rows_.parked_q[at] = q[from];
        // The last row of what is set aside is marked.
        rows_.parked_e[at] = i + 1 < rows ? e[from] : T(-1);
        rows_.parked_sigma[at] = lanes.sigma[lane];
        rows_.parked_low[at] = lanes.sigma_low[lane];
        q[from] = DqdsLimits<T>::kPad;
        e[from] = 0;
      }
      using S = typename Types<T>::Scalar;
      lanes.parked[lane] += static_cast<S>(rows);
      lanes.left[lane] -= static_cast<S>(rows);
      fresh(lanes, lane);
      return;
    }
  }

  // Takes back what was set aside last.  `top` is the first true row of all lanes; returns what it is then.
  __attribute__((noinline)) int64_t resume(int lane_index, int lane, DqdsLanes<T>& lanes, int64_t top) const {
    using S = typename Types<T>::Scalar;
    const int64_t last = lanes.parked[lane];
    int64_t first = last - 1;
    while (first > 0 && rows_.parked_e[(first - 1) * R + lane_index] != T(-1)) --first;
    const int64_t count = last - first;
    // Rows above the first true one are not kept up, and hold what was there some sweeps ago.
    for (; top > end_ - count; --top)
      for (int i = 0; i < R; ++i) {
        rows_.q[0][(top - 2) * R + i] = DqdsLimits<T>::kPad;
        rows_.e[0][(top - 2) * R + i] = 0;
      }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t from = (first + i) * R + lane_index, at = (end_ - count + i) * R + lane_index;
      rows_.q[0][at] = rows_.parked_q[from];
      rows_.e[0][at] = i + 1 < count ? rows_.parked_e[from] : T(0);
    }
    lanes.sigma[lane] = rows_.parked_sigma[first * R + lane_index];
    lanes.sigma_low[lane] = rows_.parked_low[first * R + lane_index];
    lanes.parked[lane] = static_cast<S>(first);
    lanes.left[lane] = static_cast<S>(count);
    fresh(lanes, lane);
    return top;
  }

 private:
  // Nothing is known of these rows: the next sweep has no shift.
  static void fresh(DqdsLanes<T>& lanes, int lane) {
    lanes.shift[lane] = 0;
    lanes.ceiling[lane] = DqdsLimits<T>::kPad;
    lanes.part[lane] = T(0.25);
    lanes.moves[lane] = 0;
    lanes.refused[lane] = 0;
    lanes.idle[lane] = 0;
  }

  const DqdsRows<T>& rows_;
  int64_t end_;
};

// The next shift, a lower bound of the smallest value in nearly all cases.  Where that value shows in the last row, the
// unit vector of that row, carried on over the rows above as far as they are small, is an approximate eigenvector
// whose residual bounds how far below `last` the value lies (Parlett and Marques 2000, cases 4 and 7).  Elsewhere it is
// a part of the least d, more from time to time (their case 6).
template <class T>
DG_INLINE Vec<T> dqds_shift(DqdsLanes<T>& lane, Vec<T> last, Vec<T> last1, Vec<T> least, Vec<T> least1, Vec<T> e1,
                            Vec<T> e2, Vec<T> q2, Vec<T> q3) {
  const Vec<T> one = splat(T(1)), zero{}, quarter = splat(T(0.25));
  // A geometric series, for the ratios of neighboring rows are alike.
  const Vec<T> tail = splat(T(1.05)) * (e1 * q3) / (q2 * (q3 - e2));
  const Vec<T> root = sqrt(tail);
  const Vec<T> at = last / (one + tail);
  const Vec<T> gap = splat(T(0.5)) * least1 - at;
  const Vec<T> near = at * (one - splat(T(1.01)) * at * (tail / gap));
  const Vec<T> far = at * (one - splat(T(1.01)) * root);
  const Vec<T> residual = select<T>(gap > root * at, near, far);
  const Int<T> bottom = least == last, small = (tail > zero) & (tail < splat(T(0.563)));
  const Vec<T> bound = max_or_second(select<T>(least1 == last1, residual, at * (one - root)), quarter * least);
  const Vec<T> shift = select<T>(bottom & small, bound, lane.part * least);
  lane.part = select<T>(bottom & small, quarter, lane.part + (one - lane.part) * splat(T(1) / 3));
  return shift;
}

template <class T>
struct Pair {
  Vec<T> lower, upper;
};

// The squares of the singular values of a bidiagonal matrix of two rows, from those of its entries.
template <class T>
DG_INLINE Pair<T> last_two(Vec<T> q1, Vec<T> e, Vec<T> q2) {
  // Upside down it has the same values.
  const Vec<T> large = max_or_second(q1, q2), little = min_or_second(q1, q2);
  const Vec<T> half = splat(T(0.5)) * ((large - little) + e);
  const Vec<T> more = little * (e / (half + sqrt(fma(half, half, little * e))));
  const Vec<T> upper = large + (e + more);
  return {little * (large / upper), upper};
}

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

template <class T>
int64_t dqds_workspace(int64_t n, int vectors) {
  return (4 * (n + kDqdsPads) + 4 * n) * vectors * kWidth<T>;
}

template <class T, int G>
class Dqds {
 public:
  static constexpr int W = kWidth<T>;
  static constexpr int64_t R = G * W;
  using S = typename Types<T>::Scalar;

  DG_INLINE Dqds(T* values, int64_t n, T* workspace) : values_(values), n_(n), end_(n + kDqdsPads) {
    const int64_t whole = end_ * R;
    for (int b = 0; b < 2; ++b) {
      rows_.q[b] = workspace + 2 * b * whole;
      rows_.e[b] = rows_.q[b] + whole;
    }
    rows_.parked_q = workspace + 4 * whole;
    rows_.parked_e = rows_.parked_q + n * R;
    rows_.parked_sigma = rows_.parked_e + n * R;
    rows_.parked_low = rows_.parked_sigma + n * R;
  }

  DG_INLINE void run(const T* off) {
    for (int g = 0; g < G; ++g) enter(off + g * W, g);
    const DqdsParking<T, G> parking(rows_, end_);
    const int64_t cap = 30 * n_ + 60;
    int64_t first = kDqdsPads;
    for (int64_t sweep = 0; sweep < cap && first < end_; ++sweep) {
      from_ = first < end_ - 3 ? first : end_ - 3;
      dqds_sweep<T, G>(rows_.q[0], rows_.e[0], rows_.q[1], rows_.e[1], from_, end_, lanes_);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) settle(g);
      collect();
      // Long chains of few operations: those of all vectors overlap, since nothing branches.
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) aim(g);
      swap(rows_.q[0], rows_.q[1]);
      swap(rows_.e[0], rows_.e[1]);
      Int<T> most{};
      for (int g = 0; g < G; ++g) {
        tend(g, parking);
        most = lanes_[g].left > most ? lanes_[g].left : most;
      }
      S rows = 0;
      for (int i = 0; i < W; ++i) rows = most[i] > rows ? static_cast<S>(most[i]) : rows;
      first = end_ - rows;
      for (int g = 0; g < G; ++g) first = resume(g, first, parking);
    }
  }

  DG_INLINE void leave(bool* converged) {
    for (int g = 0; g < G; ++g) {
      const Int<T> done = (lanes_[g].left == Int<T>{}) & (lanes_[g].parked == Int<T>{});
      Vec<T> scale;
      for (int i = 0; i < W; ++i) {
        scale[i] = power_of_two<T>(lanes_[g].power[i] / 2);
        converged[g * W + i] = done[i];
        if (done[i]) sort_descending(values_ + g * W + i, n_, R);
      }
      for (int64_t j = 0; j < n_; ++j) {
        T* const at = values_ + j * R + g * W;
        const Vec<T> square = load(at);
        store(at, select<T>(done & (square > splat(16 * DqdsLimits<T>::kFloor)), scale * sqrt(square), Vec<T>{}));
      }
    }
  }

 private:
  // One vector of lanes from squares of the entries.
  DG_INLINE void enter(const T* off, int g) {
    const Vec<T> zero{};
    const T* const diagonal = values_ + g * W;
    DqdsLanes<T>& lane = lanes_[g];
    // Of all entries: where rows are small that come before large ones, the large numbers are off the diagonal.
    Vec<T> top = load(diagonal + (n_ - 1) * R), scale;
    for (int64_t j = 0; j + 1 < n_; ++j)
      top = max_or_second(load(diagonal + j * R), max_or_second(load(off + j * R), top));
    // To a largest square in [1, 4), by an even power of two: values are then scaled by a power of two.
    for (int i = 0; i < W; ++i) {
      lane.power[i] = top[i] > 0 ? exponent_of<T>(top[i]) & ~S{1} : S{0};
      scale[i] = power_of_two<T>(static_cast<S>(-lane.power[i]));
    }
    lane.drop = scale * top * splat(DqdsLimits<T>::kEps * DqdsLimits<T>::kEps);
    for (int b = 0; b < 2; ++b)
      for (int64_t j = 0; j < kDqdsPads; ++j) {
        store(rows_.q[b] + j * R + g * W, splat(DqdsLimits<T>::kPad));
        store(rows_.e[b] + j * R + g * W, zero);
      }
    // A matrix whose rows grow downwards is turned upside down, for values converge from the small end.
    const Int<T> turn = load(diagonal) < load(diagonal + (n_ - 1) * R);
    for (int64_t j = 0; j < n_; ++j) {
      const int64_t at = (kDqdsPads + j) * R + g * W;
      store(rows_.q[0] + at, scale * select<T>(turn, load(diagonal + (n_ - 1 - j) * R), load(diagonal + j * R)));
      store(rows_.e[0] + at,
            j + 1 < n_ ? scale * select<T>(turn, load(off + (n_ - 2 - j) * R), load(off + j * R)) : zero);
    }
    lane.shift = lane.sigma = lane.sigma_low = zero;
    lane.ceiling = splat(DqdsLimits<T>::kPad);
    lane.part = splat(T(0.25));
    lane.moves = lane.moved = lane.refused = lane.idle = lane.parked = Int<T>{};
    lane.left = splat_int<T>(static_cast<S>(n_));
  }

  DG_INLINE Vec<T> q(int g, int64_t back) const { return load(rows_.q[1] + (end_ - back) * R + g * W); }
  DG_INLINE Vec<T> e(int g, int64_t back) const { return load(rows_.e[1] + (end_ - back) * R + g * W); }

  // Takes a sweep or refuses it.
  DG_INLINE void settle(int g) {
    const Vec<T> zero{};
    DqdsLanes<T>& lane = lanes_[g];
    const Int<T> refused = lane.least < zero, accepted = (lane.left > Int<T>{}) & ~refused;
    // sigma += shift, keeping what is lost (Knuth's two-sum).
    const Vec<T> shift = select<T>(accepted, lane.shift, zero);
    const Vec<T> sum = lane.sigma + shift, part = sum - lane.sigma;
    lane.sigma_low += (lane.sigma - (sum - part)) + (shift - part);
    lane.sigma = sum;
    const Vec<T> tolerance = splat(T(64) * DqdsLimits<T>::kEps * DqdsLimits<T>::kEps);
    const Vec<T> limit = max_or_second(tolerance * (lane.sigma + lane.last), lane.drop);
    const Int<T> single = accepted & (e(g, 2) <= limit), pair = accepted & ~single & (e(g, 3) <= limit);
    const Int<T> found = single | pair;
    store(value_ + g * W, lane.sigma + (lane.last + lane.sigma_low));
    refused_ |= uint64_t{bits(refused)} << g * W;
    found_ |= uint64_t{bits(found)} << g * W;
    pairs_ |= uint64_t{bits(pair)} << g * W;
    lane.moved = lane.moves;
    lane.left += found;  // true is -1
    lane.moves = found;
    lane.refused = (lane.refused - refused) & refused;
    lane.idle = (lane.idle + splat_int<T>(1)) & ~found;
    lane.ceiling = select<T>(refused, min_or_second(lane.ceiling, lane.shift), lane.ceiling - shift);
    lane.ceiling = select<T>(found, splat(DqdsLimits<T>::kPad), lane.ceiling);
    lane.part = select<T>(found, splat(T(0.25)), lane.part);
  }

  // What only some sweeps have to do, for all vectors at once: few branches, since none of them can be foreseen.
  DG_INLINE void collect() {
    if (pairs_)
      for (int g = 0; g < G; ++g) {
        // The last two rows are by themselves: both values at once, one of them to be found by the next sweep.
        DqdsLanes<T>& lane = lanes_[g];
        const Int<T> pair = from_bits<T>(static_cast<unsigned>(pairs_ >> g * W) & ((1u << W) - 1));
        const Pair<T> both = last_two<T>(q(g, 2), e(g, 2), lane.last);
        store(value_ + g * W, select<T>(pair, lane.sigma + (both.lower + lane.sigma_low), load(value_ + g * W)));
        lane.last1 = select<T>(pair, both.upper, lane.last1);
        store(rows_.q[1] + (end_ - 2) * R + g * W, select<T>(pair, both.upper, q(g, 2)));
        store(rows_.e[1] + (end_ - 3) * R + g * W, select<T>(pair, Vec<T>{}, e(g, 3)));
      }
    for (; found_; found_ &= found_ - 1) {
      const int i = __builtin_ctzll(found_);
      const DqdsLanes<T>& lane = lanes_[i / W];
      values_[(lane.left[i % W] + lane.parked[i % W]) * R + i] = value_[i];
    }
    for (; refused_; refused_ &= ~(((uint64_t{1} << W) - 1) << __builtin_ctzll(refused_) / W * W)) {
      const int g = __builtin_ctzll(refused_) / W;
      const Int<T> refused = from_bits<T>(static_cast<unsigned>(refused_ >> g * W) & ((1u << W) - 1));
      dqds_restore<T, G>(rows_.q[0] + g * W, rows_.e[0] + g * W, rows_.q[1] + g * W, rows_.e[1] + g * W, from_, end_,
                         refused, lanes_[g].moved);
    }
    pairs_ = 0;
  }

  // The next shift, from the last rows of what is left.
  DG_INLINE void aim(int g) {
    const Vec<T> zero{};
    DqdsLanes<T>& lane = lanes_[g];
    const Int<T> found = lane.moves, refused = lane.refused > Int<T>{};
    const Vec<T> least = select<T>(found, lane.least1, lane.least);
    Vec<T> next = dqds_shift<T>(lane, select<T>(found, lane.last1, lane.last), select<T>(found, lane.last2, lane.last1),
                                least, select<T>(found, lane.least2, lane.least1), select<T>(found, e(g, 3), e(g, 2)),
                                select<T>(found, e(g, 4), e(g, 3)), select<T>(found, q(g, 3), q(g, 2)),
                                select<T>(found, q(g, 4), q(g, 3)));
    next = min_or_second(next, splat(T(1) - T(0x1p-6)) * lane.ceiling);
    // Not from the floor, which the next sweep would lift again, nor from pads.
    const Int<T> real = (least > splat(16 * DqdsLimits<T>::kFloor)) & (least < splat(T(0.5) * DqdsLimits<T>::kPad));
    next = select<T>(real & (next > zero), next, zero);
    // After a refused shift: where only the last row went negative, what is missing is a good guess.
    const Vec<T> late = (lane.shift + lane.least) * splat(T(1) - 4 * DqdsLimits<T>::kEps);
    const Vec<T> again = select<T>((lane.least1 > zero) & (late > zero), late, splat(T(0.25)) * lane.shift);
    next = select<T>(refused, select<T>(lane.refused > splat_int<T>(kDqdsRefusals), zero, again), next);
    lane.part = select<T>(refused, splat(T(1) / 12), lane.part);
    lane.shift = select<T>(lane.left > Int<T>{}, next, zero);
  }

  DG_INLINE void tend(int g, const DqdsParking<T, G>& parking) {
    DqdsLanes<T>& lane = lanes_[g];
    const Int<T> idle = (lane.left > splat_int<T>(1)) & (lane.idle >= splat_int<T>(kDqdsIdle));
    if (const unsigned stuck = bits(idle))
      for (int i = 0; i < W; ++i)
        if (stuck >> i & 1) parking.split(g * W + i, i, lane);
  }

  DG_INLINE int64_t resume(int g, int64_t first, const DqdsParking<T, G>& parking) {
    DqdsLanes<T>& lane = lanes_[g];
    if (const unsigned through = bits((lane.left == Int<T>{}) & (lane.parked > Int<T>{})))
      for (int i = 0; i < W; ++i)
        if (through >> i & 1) first = parking.resume(g * W + i, i, lane, first);
    return first;
  }

  T* values_;
  int64_t n_, end_;
  int64_t from_ = 0;  // first row of the sweep at hand
  DqdsRows<T> rows_;  // a sweep goes from the first of each pair to the second
  DqdsLanes<T> lanes_[G];
  // Of all lanes after a sweep: a bit for each whose shift was refused, that has found a value, or found two.
  uint64_t refused_ = 0, found_ = 0, pairs_ = 0;
  T value_[R];  // the value of each that has found one
};

template <class T, int G>
__attribute__((noinline)) void dqds_lanes(T* values, const T* off, int64_t n, bool* converged, T* workspace) {
  Dqds<T, G> dqds(values, n, workspace);
  dqds.run(off);
  dqds.leave(converged);
}

}  // namespace
