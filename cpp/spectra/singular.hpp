// Singular values of batches of matrices.
#pragma once

#include <cstdint>

#include "common/leading_axes.hpp"
#include "common/resources.hpp"
#include "spectra/singular_kernels.hpp"

namespace depthgauge::spectra {

// Matrices of one shape, the first at `data`; strides in bytes.
struct Batch {
  const char* data;
  LeadingAxes axes;
  int64_t rows, columns;
  int64_t row_stride, column_stride;
};

// The singular values of matrix i are values[i, :] * 2^exponents[i], descending, with min(rows, columns) of them.  A
// matrix with a NaN or an infinity, or one whose sweeps reach their limit, which is not `converged`, has NaN.
template <class T>
void singular_values(const Batch& batch, T* values, int64_t* exponents, bool* converged, const Resources& resources);

}  // namespace depthgauge::spectra
