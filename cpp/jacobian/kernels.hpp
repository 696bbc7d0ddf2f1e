// What a per-instruction-set unit offers for Jacobians: one block linearized at one example, and products with it.
//
// Tangents are rows: a block takes a tangent t to post'(skip t + (t A) C), where A (width, live) is the derivative of
// the hidden units that are alive at the example, and C (live, width) that of the branch by them; scales and norms are
// in A, C and post'.  The transposed Jacobian is a matrix of tangents, one row for each input feature.
#pragma once

#include <cstdint>

#include "common/kernel_tables.hpp"
#include "stack/kernels.hpp"

namespace depthgauge::jacobian {

// Rows of a product that stay in the second-level cache while every panel of the right factor is used; a multiple of
// the rows of most microkernels.
inline constexpr int64_t kRowBlock = 96;

// A matrix in tiles of one cache line: tile g of row r, which holds columns g * kGroup ..., is at data + r * row +
// g * group.  Contiguous rows have `group` kGroup; panels, each one tile wide, have `row` kGroup.
template <class T>
struct Tiles {
  T* data;
  int64_t row, group;
};

// A norm's derivative at one example, for rows: gain * (r - mean(r) - hat * mean(hat * r)) * shrink * power * scale,
// with only those terms that the kind has.
template <class T>
struct RowNorm {
  T* hat;   // (width, padded with zeros)
  T* gain;  // (width, padded with zeros): the gain, times the slope of dyt
  T shrink, power, scale;
  bool centers, projects, rescales, active;
};

// How a block's branch is multiplied with.
enum class Form {
  factors,  // by A, then by C
  select,   // by A, whose columns then are columns of the branch: a linear one without output norm
  whole,    // by A C
};

// What a block is linearized for: the least work; `Form::whole` with A in rows, ready to be formed; or A and C both in
// rows, each a factor by itself.
enum class Request { least, whole, separate };

template <class T>
struct Linearized {
  Form form;
  int64_t live;
  T skip;
  int32_t* units;  // (live) which hidden units they are
  RowNorm<T> norm[stack::kPlaces];
  Tiles<T> a;
  Tiles<T> c;
  Tiles<T> product;  // panels, for A C
};

// The rows of tangents that one call changes, of all parts.
template <class T>
struct Tangents {
  Tiles<T> part;       // part 0, in contiguous rows
  int64_t part_stride;  // from part to part
  int64_t parts;        // 1 without orders
  bool orders;          // part k takes what part k - 1 gives; otherwise a part takes its own
};

template <class T>
struct Kernels {
  // From row to row of contiguous rows.
  int64_t (*row_size)(int64_t columns);
  // Elements of workspace, aligned to a cache line: of one linearized block, and of one call of `advance`.
  int64_t (*block_workspace)(const stack::Equation&);
  int64_t (*row_workspace)(const stack::Equation&);
  // Linearizes a block at example `lane` of a group; the product is not formed.
  void (*linearize)(const stack::Equation&, const stack::Layer<T>&, const stack::Tape<T>&, const T* state, int lane,
                    Request, T* workspace, Linearized<T>* out);
  // Rows [first, last) of A C + skip I into `to`; needs A in rows.
  void (*form)(const stack::Equation&, const Linearized<T>&, int64_t first, int64_t last, T skip, const Tiles<T>& to);
  // Takes rows [first, last) of all parts through the block; returns their largest magnitude then, NaNs aside.  Where
  // the form is whole, `product` holds A C.
  T (*advance)(const stack::Equation&, const Linearized<T>&, const Tangents<T>&, int64_t first, int64_t last,
               T* workspace);
  // Applies a norm to rows [first, last).
  void (*norm)(const stack::Equation&, const RowNorm<T>&, const Tiles<T>& rows, int64_t first, int64_t last);
  // The largest magnitude of rows [first, last), NaNs aside, and their product with 2^exponent.
  T (*top)(const stack::Equation&, const Tiles<T>& rows, int64_t first, int64_t last);
  void (*scale)(const stack::Equation&, const Tiles<T>& rows, int64_t first, int64_t last, int exponent);
};

DG_DECLARE_TABLES(Kernels)

}  // namespace depthgauge::jacobian
