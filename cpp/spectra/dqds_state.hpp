// The state of dqds between sweeps, for matrices side by side, one a lane.
//
// Names are LAPACK's, as in dlasq2 to dlasq5: tau is a shift and sigma the sum of those so far, of which desig is what
// rounding lost; dn, dn1 and dn2 are the values that d has in the last rows, dmin the least of all.
#pragma once

#include "common/simd.hpp"

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

// One vector of lanes.
template <class T>
struct DqdsLanes {
  using Scalar = typename Types<T>::Scalar;

  Vec<T> tau;                 // shift of the next sweep
  Vec<T> dn, dn1, dn2;        // d of the last row, the one above it, and the one above that
  Vec<T> dmin, dmin1, dmin2;  // least d of all rows, of all but the last, of all but the last two
  Vec<T> sigma, desig;        // sum of the shifts, and what its rounding lost
  Vec<T> negligible;          // off-diagonals up to this are dropped
  Vec<T> ceiling;             // a shift that was refused for what is left, less what was shifted since
  Vec<T> g;                   // the part of dmin that is the next shift where nothing better is known
  Int<T> moves;               // lanes that move down by one row in the next sweep
  Int<T> moved;               // those that did in the last one
  Int<T> left;                // active rows
  Int<T> refused;             // shifts refused since the last one accepted
  Int<T> idle;                // sweeps since the last value was found
  Int<T> aside;               // rows set aside when the matrix split
  Scalar power[kWidth<T>];    // of two, that the squares were divided by

  // Nothing is known of the rows at hand: the next sweep has no shift.
  void restart(int lane) {
    tau[lane] = 0;
    ceiling[lane] = DqdsLimits<T>::kPad;
    g[lane] = T(0.25);
    moves[lane] = 0;
    refused[lane] = 0;
    idle[lane] = 0;
  }
};

// Memory of one call: rows of all lanes.  q and e have kDqdsPads rows before the matrix, and are there twice: a sweep
// goes from the first of each pair to the second.  Rows that are set aside have the sigma and desig of their time.
template <class T>
struct DqdsRows {
  T *q[2], *e[2];
  T *aside_q, *aside_e, *aside_sigma, *aside_desig;

  DG_INLINE DqdsRows(T* memory, int64_t n, int64_t row) {
    const int64_t whole = (n + kDqdsPads) * row;
    for (int b = 0; b < 2; ++b) {
      q[b] = memory + 2 * b * whole;
      e[b] = q[b] + whole;
    }
    aside_q = memory + 4 * whole;
    aside_e = aside_q + n * row;
    aside_sigma = aside_e + n * row;
    aside_desig = aside_sigma + n * row;
  }
};

template <class T>
int64_t dqds_workspace(int64_t n, int vectors) {
  return (4 * (n + kDqdsPads) + 4 * n) * vectors * kWidth<T>;
}

}  // namespace
