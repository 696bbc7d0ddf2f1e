// The kernels of singular values: plain structs in, raw pointers out, one table for each instruction set.
#pragma once

#include <cstdint>

#include "common/kernel_tables.hpp"

namespace depthgauge::spectra {

// One, two or this many vectors of lanes go through one call of `dqds`: so many hide the latency of a division.
constexpr int kDqdsVectors = 4;
constexpr int kMaxLanes = 16;

// One matrix, rows >= columns; strides in bytes.
struct Matrix {
  const char* data;
  int64_t rows, columns;
  int64_t row_stride, column_stride;
};

// What is known of a matrix before its values: the true matrix is 2^exponent times one with largest entry in [1, 2).
struct Scan {
  int64_t exponent;
  bool finite;
};

// One matrix on its way to bidiagonal form: columns of `stride` elements, the vectors of the step at hand, and those of
// the last one, whose old_u old_y' + old_z old_v' is still to be subtracted from the columns that the step sweeps.
template <class T>
struct Columns {
  T* a;
  int64_t rows, columns, stride;
  T *u, *z, *old_u, *old_z;  // by row
  T *y, *v, *old_y, *old_v;  // by column, `across` of them with the pads
  int64_t across;
  T tau;                     // of the column reflector I - tau u u'
  T corner;                  // what that leaves of the column
};

template <class T>
struct Kernels {
  int lanes;  // matrices in one vector

  Scan (*scan)(const Matrix&);

  // Up to `lanes` matrices of one size, side by side, to squares of the diagonal and of the superdiagonal of a
  // bidiagonal matrix with the same singular values: matrix i has q[j * stride + i], e[j * stride + i].  Lanes beyond
  // `count`, and matrices that are not finite, are zero.
  int64_t (*side_by_side_workspace)(int64_t rows, int64_t columns);
  void (*side_by_side)(const Matrix* matrices, const Scan* scans, int count, int64_t rows, int64_t columns, T* q, T* e,
                       int64_t stride, T* workspace);

  // One matrix by itself, below the rows of a triangle that is already there, if any.
  int64_t (*column_stride)(int64_t rows);
  void (*pack_columns)(const Matrix&, const Scan&, const T* triangle, const Columns<T>&);
  // Then in steps k = 0, 1, ...: the reflector of column k; the sweep over the columns right of it, in parts; and the
  // reflector of row k, from the parts of z at parts + p * stride.  The reflectors return the squares of the entries of
  // the bidiagonal matrix.
  T (*reflect_column)(Columns<T>&, int64_t k);
  void (*sweep)(const Columns<T>&, int64_t k, int64_t first, int64_t last, T* part);
  T (*reflect_row)(Columns<T>&, int64_t k, const T* parts, int64_t count);
  // Instead of a reflector, row k of the triangular factor as it is.  Sweeps then make no z: their `part` is null.
  void (*keep_row)(Columns<T>&, int64_t k, T* row);

  // Squares q[row * vectors * lanes + lane], e likewise, to singular values, descending, in place of q.
  // converged[lane] tells of each.
  int64_t (*dqds_workspace)(int64_t n, int vectors);
  void (*dqds)(T* q, const T* e, int64_t n, int vectors, bool* converged, T* workspace);
};

DG_DECLARE_TABLES(Kernels)

}  // namespace depthgauge::spectra
