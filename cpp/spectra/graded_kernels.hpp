// What a per-instruction-set unit offers for singular values to high relative accuracy: a product of factors that grows
// by one factor a call, and the singular values of what it is by then.
//
// A product is held as Q D U.  Q has orthonormal columns and is kept as Householder reflectors, D is a diagonal of
// powers of two that no floating-point range holds, U has rows of about unit size.  Only D U matters to the singular
// values; Q is what the next factor meets.  `backends/reference/graded.py` says the same in formulas.
#pragma once

#include <cstdint>

#include "common/stop.hpp"

namespace depthgauge::spectra {

// A matrix as a caller holds it: float32 or float64, strides in bytes.
struct Factor {
  const char* data;
  int64_t rows, columns;
  int64_t row_stride, column_stride;
  bool single;
};

// Sizes of a product that is to be made.
struct GradedSizes {
  int64_t width;  // columns of the first factor
  int64_t rank;  // the smaller side of the first factor
  int64_t rows;  // most rows of any factor
  int64_t entries;  // the most that any factor has, each of its sides padded by 15
  bool several;  // more than one factor
};

struct GradedProduct {
  // The workspace, one block of memory.  Matrices are row-major, their rows padded with zeros.
  double* factor;  // as read, where it has to be transposed
  double* transposed;  // the transposed factor, to which Q is applied from the left
  double* panel;  // what is factored by QR
  double* reflectors;  // (rank, live)
  double* u;  // (rank, width)
  double* next_u;
  double* triangle;  // (rank, rank)
  double* vectors;  // of the QR and of sweeps
  int64_t* integers;
  double* betas;
  int64_t* exponents;  // of D
  int64_t* order;  // the row of the product that each entry of a reflector belongs to, pivots first
  GradedSizes sizes;
  int64_t u_stride, triangle_stride;

  int64_t rank;
  int64_t live;  // rows that are not zero
  int64_t reflections;  // how many make up Q: 0 while it is the identity, else `rank`
  bool started;  // `u` is in use: before, it stands for the identity
};

struct GradedKernels {
  // Bytes of memory, aligned to a cache line, that a product needs.
  int64_t (*memory)(const GradedSizes&);
  // Makes `product` the identity of `sizes.width`.
  void (*start)(GradedProduct* product, const GradedSizes& sizes, void* memory);
  // Multiplies by a factor from the left; false if that holds a NaN or an Inf, or scales beyond all range, which leaves
  // the product unusable.
  bool (*multiply)(GradedProduct* product, const Factor& factor, const Stop& stop);
  // The singular values that are not exactly zero, descending, as values * 2^exponents with values in [1/2, 1); NaN
  // where the sweeps did not suffice.  Returns how many, at most sizes.rows and sizes.width.  The product stays usable.
  int64_t (*singular_values)(GradedProduct* product, double* values, int64_t* exponents, const Stop& stop);
};

#define DG_DECLARE_TARGET(target)              \
  namespace target {                           \
  void get_graded_kernels(GradedKernels* out); \
  }
DG_DECLARE_TARGET(baseline)
DG_DECLARE_TARGET(v3)
DG_DECLARE_TARGET(v4)
#undef DG_DECLARE_TARGET

}  // namespace depthgauge::spectra
