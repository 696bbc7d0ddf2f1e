// One instruction set and precision: DG_TARGET and DG_REAL are set by the build.
#include "stack/kernels.hpp"

#include "stack/forward_layer.hpp"
#include "stack/outer_product.hpp"
#include "stack/vjp_layer.hpp"
#include "stack/jvp_layer.hpp"

namespace {

// As many independent chains as hide the latency of a multiply-add on any current core.
double peak(int64_t steps) {
  constexpr int chains = kVectorBytes == 64 ? 24 : 12;
  Vec<DG_REAL> a[chains];
  for (int i = 0; i < chains; ++i) a[i] = splat(DG_REAL(i));
  const Vec<DG_REAL> b = splat(DG_REAL(0.999)), c = splat(DG_REAL(0.001));
  for (int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 24
    for (int i = 0; i < chains; ++i) a[i] = fma(a[i], b, c);
  }
  Vec<DG_REAL> sum{};
  for (int i = 0; i < chains; ++i) sum += a[i];
  // The result is used, so that the loop is not removed, and vanishes.
  const double flops = 2.0 * chains * kWidth<DG_REAL> * static_cast<double>(steps);
  return sum[0] == DG_REAL(-1) ? 0 : flops;
}

int64_t scratch(const Equation& eq, int64_t jobs) {
  const int64_t layer = layer_scratch<DG_REAL>(eq, jobs), outer = outer_scratch<DG_REAL>();
  return layer > outer ? layer : outer;
}

}  // namespace

namespace depthgauge::stack::DG_TARGET {

void get_kernels(Kernels<DG_REAL>* out) {
  out->scratch = scratch;
  out->moments = group_moments<DG_REAL>;
  out->forward = forward_layer<DG_REAL>;
  out->jvp = jvp_layer<DG_REAL>;
  out->vjp = vjp_layer<DG_REAL>;
  out->outer = outer_product<DG_REAL>;
  out->peak = peak;
}

}  // namespace depthgauge::stack::DG_TARGET
