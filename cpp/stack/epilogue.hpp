// Where the forward pass leaves its results.
//
// Every value that the block equation makes goes through `emit` exactly once: u, z, the up path of a gated branch,
// phi(z), their product, the branch, what its output norm makes of it, the residual sum, and what the post norm makes
// of that.  Sums of products, derivatives and statistics do not.  So a rounding of results has one place.
#pragma once

#include "common/simd.hpp"

namespace {

// A result as it counts from here on, where it stays in registers.
template <class T>
DG_INLINE Row<T> emit(Row<T> x) {
  return x;
}

// The same, stored too.
template <class T>
DG_INLINE Row<T> emit(Row<T> x, T* to) {
  x = emit(x);
  store_row(to, x);
  return x;
}

}  // namespace
