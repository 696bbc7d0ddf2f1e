// The memory of a product of factors.
#pragma once

#include "common/simd.hpp"
#include "spectra/graded_kernels.hpp"
#include "spectra/graded_qr.hpp"
#include "spectra/graded_scaling.hpp"

namespace {

using namespace depthgauge::spectra;

// Reflectors applied at once.
constexpr int64_t kBlock = 4;

DG_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
DG_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Sizes of the arrays of a product, in elements.
struct WorkspaceSizes {
  explicit WorkspaceSizes(const GradedSizes& s) {
    const int64_t most = larger(s.rows, s.width);
    longest = row_stride(most);
    matrix = larger(s.entries, most * row_stride(s.rank));
    reflectors = s.several ? (s.rank + kBlock) * row_stride(s.rows) : 0;
    u = s.rank * row_stride(s.width);
    triangle = (s.rank + 3) * row_stride(s.rank);  // read in fours
    vectors = qr_workspace(most, most);
  }
  int64_t doubles() const { return 3 * matrix + reflectors + 2 * u + triangle + vectors + longest; }
  int64_t integers() const { return 10 * longest; }
  int64_t longest, matrix, reflectors, u, triangle, vectors;
};

inline int64_t graded_memory(const GradedSizes& sizes) {
  const WorkspaceSizes size(sizes);
  return 8 * (size.doubles() + size.integers());
}

// Integer arrays of a product, each as long as the longest side.
struct IntegerArrays {
  explicit IntegerArrays(const GradedProduct& p) {
    int64_t* next = p.integers;
    const int64_t longest = WorkspaceSizes(p.sizes).longest;
    int64_t** const arrays[] = {&rows, &columns, &all_columns, &owners, &to, &r, &row_order, &column_order};
    for (int64_t** array : arrays) {
      *array = next;
      next += longest;
    }
  }
  int64_t *rows, *columns;  // exponents of rows and columns of the factor, columns in the order of Q
  int64_t* all_columns;     // the same in their own order
  int64_t* owners;          // the row of the product that each row of the panel makes
  int64_t* to;              // where a column goes when it becomes a row
  int64_t* r;               // exponents of the rows of the panel
  int64_t *row_order, *column_order;
};

inline void start_graded(GradedProduct* p, const GradedSizes& sizes, void* memory) {
  const WorkspaceSizes size(sizes);
  double* next = static_cast<double*>(memory);
  const auto carve = [&](int64_t count) {
    double* const array = next;
    next += count;
    return array;
  };
  *p = GradedProduct{};
  p->sizes = sizes;
  p->factor = carve(size.matrix);
  p->transposed = carve(size.matrix);
  p->panel = carve(size.matrix);
  p->reflectors = carve(size.reflectors);
  p->u = carve(size.u);
  p->next_u = carve(size.u);
  p->triangle = carve(size.triangle);
  p->vectors = carve(size.vectors);
  p->betas = carve(size.longest);
  p->integers = reinterpret_cast<int64_t*>(next);
  p->exponents = p->integers + 8 * size.longest;
  p->order = p->exponents + size.longest;
  p->u_stride = row_stride(sizes.width);
  p->triangle_stride = row_stride(sizes.rank);
  p->rank = p->live = sizes.width;
  for (int64_t j = 0; j < sizes.width; ++j) {
    p->exponents[j] = 0;
    p->order[j] = j;
  }
}

}  // namespace
