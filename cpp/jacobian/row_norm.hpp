// The derivative of a norm at one example, and rows multiplied with it.
#pragma once

#include "jacobian/tiles.hpp"
#include "stack/layer.hpp"

namespace {

using depthgauge::jacobian::RowNorm;

// r becomes gain * (r - mean(r) - hat * mean(hat * r)) * rescaling, for a row r in tiles `step` apart.
template <class T>
void apply_row_norm(const RowNorm<T>& norm, int64_t d, T* row, int64_t step) {
  const int64_t groups = groups_of<T>(d);
  T mean = 0, along = 0;
  if (norm.centers || norm.projects) {
    LaneSum<T> sum, product;
    each_feature(
        groups,
        [&](int64_t g, int chain) DG_INLINE_LAMBDA {
          const Row<T> r = load_row(row + g * step);
          sum.add(chain, r);
          product.add_product(chain, r, load_row(norm.hat + g * kLanes<T>));
        },
        [&]() DG_INLINE_LAMBDA {
          sum.flush();
          product.flush();
        });
    const auto total = [d](const LaneSum<T>& s) DG_INLINE_LAMBDA {
      double lanes[kLanes<T>], all = 0;
      s.result(lanes);
      for (int i = 0; i < kLanes<T>; ++i) all += lanes[i];
      return static_cast<T>(all / static_cast<double>(d));
    };
    if (norm.centers) mean = total(sum);
    if (norm.projects) along = total(product);
  }
  const Row<T> m = splat_row(mean), a = splat_row(along), shrink = splat_row(norm.shrink);
  const Row<T> power = splat_row(norm.power), scale = splat_row(norm.scale);
  for (int64_t g = 0; g < groups; ++g) {
    Row<T> r = load_row(row + g * step);
    if (norm.centers) r = r - m;
    if (norm.projects) r = r - load_row(norm.hat + g * kLanes<T>) * a;
    if (norm.rescales) r = r * shrink * power * scale;
    const Row<T> gain = load_row(norm.gain + g * kLanes<T>);
    for (int i = 0; i < kVectors; ++i) r.v[i] = select<T>(gain.v[i] == Vec<T>{}, Vec<T>{}, r.v[i] * gain.v[i]);
    store_row(row + g * step, r);
  }
}

// The derivative of the norm at one place, of example `lane` of the group x.
template <class T>
void find_row_norm(const Equation& eq, depthgauge::stack::Place place, const T* x, const NormFactors<T>* factors,
                   const T* gain, int lane, T* hat, T* gains, RowNorm<T>* out) {
  const int64_t d = eq.width;
  const Norm kind = eq.norm[place];
  *out = {hat,
          gains,
          T(1),
          T(1),
          T(1),
          centers(kind),
          kind == Norm::rms || kind == Norm::layer,
          rescales(kind),
          kind != Norm::none || gain != nullptr};
  if (!out->active || d == 0) return;
  for (int64_t k = d; k < groups_of<T>(d) * kLanes<T>; ++k) hat[k] = gains[k] = 0;
  for (int64_t k = 0; k < d; ++k) gains[k] = gain ? gain[k] : T(1);
  if (kind == Norm::none) return;
  for (int64_t k = 0; k < d; ++k) hat[k] = x[k * kLanes<T> + lane];
  if (kind == Norm::dyt) {
    const Row<T> alpha = splat_row(static_cast<T>(eq.dyt_alpha));
    for (int64_t k = 0; k < d; k += kLanes<T>) {
      Row<T> value, slope;
      tanh(alpha * load_row(hat + k), value, slope);
      store_row(gains + k, load_row(gains + k) * (slope * alpha));
    }
    return;
  }
  const T shrink = factors->shrink[lane], power = factors->power[lane], scale = factors->scale[lane];
  const T first = hat[0] * shrink, mean = factors->mean[lane];
  out->shrink = shrink;
  out->power = power;
  out->scale = scale;
  if (centers(kind))
    for (int64_t k = 0; k < d; ++k) hat[k] = ((hat[k] * shrink - first) - mean) * power * scale;
  else
    for (int64_t k = 0; k < d; ++k) hat[k] = hat[k] * shrink * power * scale;
}

}  // namespace
