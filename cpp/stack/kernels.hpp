// What a per-instruction-set unit offers: one layer of a stack over a list of groups of examples.
//
// Everything that crosses between a unit and the drivers is declared here and is plain data.  A group is as many
// examples as fill a cache line, stored [feature][example]; d and m are a block's width and hidden width.
#pragma once

#include <cstdint>

#include "common/kernel_tables.hpp"
#include "common/stop.hpp"
#include "stack/equation.hpp"

namespace depthgauge::stack {

template <class T>
inline constexpr int kGroup = 64 / static_cast<int>(sizeof(T));
inline constexpr int kMaxGroup = 16;
// Groups a call: enough to pay for packing the weights, and so few that their states stay in the caches.
inline constexpr int kMaxJobs = 16;
// Rows of a weight gradient a call.
inline constexpr int kOuterRows = 48;

// The derivative of these is 1 or `slope`, so that the tape needs a bit a unit.
__attribute__((always_inline)) inline bool one_bit(Activation a) {
  return a == Activation::relu || a == Activation::leaky_relu;
}

// One layer of one set of weights; absent arrays are null.
template <class T>
struct Layer {
  const T* up;
  const T* down;
  const T* gate;
  const T* b_up;
  const T* b_down;
  const T* b_gate;
  const T* gain[kPlaces];
  const T* shift[kPlaces];
  // The matrices that the pass will read after this layer's; null after the last.
  const T* next_up;
  const T* next_down;
  const T* next_gate;
  T branch_scale;
  T skip_scale;
};

// Per example of a group: the sum of squares of power * x, with `power` a power of two that keeps the squares in
// range, 1 nearly always.  With NaN or Inf in x the sum and max_abs are that, and `nonfinite` counts them.
struct alignas(64) Moments {
  double sum_squares[kMaxGroup];
  double power[kMaxGroup];
  double max_abs[kMaxGroup];
  int64_t nonfinite[kMaxGroup];
};

// The same, pooled over the examples of a group.
struct Pool {
  double sum_squares = 0;
  double power = 1;
  double max_abs = 0;
  int64_t nonfinite = 0;
};

// What a norm did to each example: x_hat = ((x - x[0]) * shrink - mean) * power * scale with centering, where x is
// brought down by the power of two `shrink` before it is subtracted, and x * power * scale without.  Kept on the
// tape, as derivatives need it.
template <class T>
struct alignas(64) NormFactors {
  T scale[kGroup<T>];
  T power[kGroup<T>];
  T mean[kGroup<T>];
  T shrink[kGroup<T>];
};

// The parts of a tape that one group has in one layer; null where the equation has no use for them, or nothing is kept.
template <class T>
struct Tape {
  NormFactors<T>* factors[kPlaces];
  T* branch;           // (d) the branch before its output norm
  T* sum;              // (d) the residual sum before the post norm
  uint16_t* positive;  // (m) one bit an example: z > 0
  T* derivative;       // (m) phi'(z), for gated phi'(z) times the up path
  T* gate_value;       // (m) gated only: phi(z)
  T* activation;       // (m) the input of the down product, where it is kept
};

template <class T>
struct ForwardJob {
  const T* state;
  T* next;
  Moments* moments;  // of `state` on entry, of `next` on return
  Tape<T> tape;
  T* abs_derivative;  // (m) |phi'(z)| on request
  double* totals;     // (d) sums of `next` over the examples
  unsigned char* unit_live;
  int examples;
  Pool next_pool;
  Pool branch_pool;
  int64_t live;
  int64_t saturated;
};

template <class T>
struct JvpJob {
  const T* state;
  T* tangent;  // of `state` on entry, of the next state on return
  Tape<T> tape;
  int examples;
  Pool pool;
};

// Sums over the examples of one group, in the order of the pointers below; null where the parameter is absent.
struct VectorSums {
  double* b_up;
  double* b_down;
  double* b_gate;
  double* gain[kPlaces];
  double* shift[kPlaces];
};

// What weight gradients need of one group: the left factor of each outer product as a group, the right one
// transposed into panels, where a cache line holds consecutive features of one example.
template <class T>
struct GradientJob {
  T* input;              // (d) the input of the branch, where it is not the state itself
  T* activation;         // (m) the input of the down product where the tape has none, for a linear branch its output
  T* normalized_branch;  // (d) the branch after its output norm, where it has one
  T* up_panel;           // gradient at the up product, panels `panel_stride` apart
  T* gate_panel;         // gradient at the gate product
  T* down_panel;         // gradient at the branch output, before branch_scale
  int64_t panel_stride;
  VectorSums sums;
  double branch_scale;
  double skip_scale;
};

template <class T>
struct VjpJob {
  const T* state;
  T* gradient;  // at the next state on entry, at `state` on return
  Tape<T> tape;
  GradientJob<T>* weights;  // null without weight gradients
  int examples;
  Pool pool;
};

// destination[k - first, j] = factor * sum over examples of left[k] right[j], for rows first <= k < last.
template <class T>
struct OuterProduct {
  const T* const* left;  // one group each, [row][example]
  const T* right;        // panels of the right factor, [column / group][example][column % group]
  int64_t panel_stride;
  const int* examples;  // of each group
  int64_t groups;
  int64_t columns;
  T factor;
  T* destination;
  int64_t stride;
};

template <class T>
struct Kernels {
  // Elements of scratch that a call with this many jobs needs, and an outer product.
  int64_t (*scratch)(const Equation&, int64_t jobs);
  void (*moments)(const T* group, int64_t d, int examples, Moments*, Pool*, double* totals);
  void (*forward)(const Equation&, const Layer<T>&, ForwardJob<T>*, int64_t jobs, T* scratch, const Stop&);
  void (*jvp)(const Equation&, const Layer<T>&, JvpJob<T>*, int64_t jobs, T* scratch, const Stop&);
  void (*vjp)(const Equation&, const Layer<T>&, VjpJob<T>*, int64_t jobs, T* scratch, const Stop&);
  void (*outer)(const OuterProduct<T>&, int64_t first, int64_t last, T* scratch);
  // Independent multiply-adds, the limit of every product: returns the flops done by `steps` steps.
  double (*peak)(int64_t steps);
};

DG_DECLARE_TABLES(Kernels)

}  // namespace depthgauge::stack
