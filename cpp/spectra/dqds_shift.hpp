// The shifts of dqds (dlasq4), and the values of a matrix of two rows.
#pragma once

#include "common/simd.hpp"
#include "spectra/dqds_state.hpp"

namespace {

// The next shift, a lower bound of the smallest value in nearly all cases.  Where that value shows in the last row, the
// unit vector of that row, continued over the rows above as far as they are small, is an approximate eigenvector whose
// residual bounds how far below dn the value lies (Parlett and Marques 2000, cases 4 and 7).  Elsewhere it is a part g
// of dmin, more from time to time (their case 6).  Constants are those of dlasq4.
template <class T>
DG_INLINE Vec<T> dqds_shift(DqdsLanes<T>& lane, Vec<T> dn, Vec<T> dn1, Vec<T> dmin, Vec<T> dmin1, Vec<T> e1, Vec<T> e2,
                            Vec<T> q2, Vec<T> q3) {
  const T cnst1 = T(0.563), cnst2 = T(1.01), cnst3 = T(1.05);
  const Vec<T> one = splat(T(1)), zero{}, quarter = splat(T(0.25));
  // Squares of the vector's entries above the last: a geometric series, for the ratios of neighboring rows are alike.
  const Vec<T> squares = splat(cnst3) * (e1 * q3) / (q2 * (q3 - e2));
  const Vec<T> b2 = sqrt(squares);
  const Vec<T> a2 = dn / (one + squares);
  const Vec<T> gap2 = splat(T(0.5)) * dmin1 - a2;
  const Vec<T> near = a2 * (one - splat(cnst2) * a2 * (squares / gap2));
  const Vec<T> far = a2 * (one - splat(cnst2) * b2);
  const Vec<T> residual = select<T>(gap2 > b2 * a2, near, far);
  const Int<T> bottom = dmin == dn, small = (squares > zero) & (squares < splat(cnst1));
  const Vec<T> bound = max_or_second(select<T>(dmin1 == dn1, residual, a2 * (one - b2)), quarter * dmin);
  const Vec<T> tau = select<T>(bottom & small, bound, lane.g * dmin);
  lane.g = select<T>(bottom & small, quarter, lane.g + (one - lane.g) * splat(T(1) / 3));
  return tau;
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

}  // namespace
