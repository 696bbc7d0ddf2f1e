// Norms over the features of each example, and their derivatives.
//
// A norm is y = gain * x_hat + shift.  The Jacobian of x -> x_hat is symmetric for every kind but dyt's, where it is
// diagonal; so one function serves both directions, the gain being applied before it in reverse mode and after it
// in forward mode.
#pragma once

#include "common/vector_math.hpp"
#include "stack/epilogue.hpp"
#include "stack/moments.hpp"

namespace {

using depthgauge::stack::Equation;
using depthgauge::stack::Norm;
using depthgauge::stack::NormFactors;

DG_INLINE bool centers(Norm n) { return n == Norm::layer || n == Norm::layer_detached || n == Norm::center; }
DG_INLINE bool rescales(Norm n) {
  return n == Norm::rms || n == Norm::layer || n == Norm::rms_detached || n == Norm::layer_detached;
}
// Kinds that remember per-example factors.
DG_INLINE bool has_factors(Norm n) { return centers(n) || rescales(n); }

// What is under the root, mean square + eps of power * x, where that is not simply as the moments have it.
template <class T>
__attribute__((noinline)) void under_scaled_root(const Moments& m, int64_t d, double eps, NormFactors<T>* f,
                                                 double* under) {
  for (int i = 0; i < kLanes<T>; ++i) {
    double power = m.power[i], squares = m.sum_squares[i];
    const double shrink = static_cast<double>(f->shrink[i]);
    if (power != 1) {
      // eps may be what keeps a tiny row in range.
      const double root = __builtin_sqrt(eps) * shrink;
      const double fit = m.max_abs[i] > root ? power : safe_power<T>(root);
      const double ratio = fit / power;
      squares = squares * ratio * ratio;
      power = fit;
    }
    f->power[i] = static_cast<T>(power);
    under[i] = squares / static_cast<double>(d) + eps * power * shrink * power * shrink;
  }
}

// scale = 1 / sqrt(mean square + eps) of power * x; 0 where everything under the root is 0.
template <class T>
DG_INLINE void rescaling(const Moments& m, int64_t d, double eps, NormFactors<T>* f) {
  double under[kLanes<T>], shrink[kLanes<T>];
  for (int i = 0; i < kLanes<T>; ++i) shrink[i] = static_cast<double>(f->shrink[i]);
  unsigned scaled = 0;
  for (int i = 0; i < kLanes<T>; i += kWidth<double>) {
    scaled |= bits((load(m.power + i) != splat(1.0)) | (load(shrink + i) != splat(1.0)));
    store(under + i, load(m.sum_squares + i) / splat(static_cast<double>(d)) + splat(eps));
  }
  if (scaled) under_scaled_root(m, d, eps, f, under);
  for (int i = 0; i < kLanes<T>; i += kWidth<double>) {
    const Vec<double> u = load(under + i);
    store(under + i, select<double>(u == Vec<double>{}, Vec<double>{}, splat(1.0) / sqrt(u)));
  }
  for (int i = 0; i < kLanes<T>; ++i) f->scale[i] = static_cast<T>(under[i]);
}

template <class T>
DG_INLINE void lane_means(const LaneSum<T>& sum, int64_t d, T* mean) {
  double total[kLanes<T>];
  sum.result(total);
  for (int i = 0; i < kLanes<T>; ++i) mean[i] = static_cast<T>(total[i] / static_cast<double>(d));
}

// x_hat of one feature.
template <class T>
struct Normalized {
  bool centered, scaled = false;
  Row<T> first, mean, shrink, power, scale;
  DG_INLINE Normalized(Norm kind, const T* x, const NormFactors<T>& f)
      : centered(centers(kind)),
        first(load_row(x)),
        mean(load_row(f.mean)),
        shrink(load_row(f.shrink)),
        power(load_row(f.power)),
        scale(load_row(f.scale)) {
    for (int i = 0; i < kVectors; ++i) scaled |= bits((power.v[i] != splat(T(1))) | (shrink.v[i] != splat(T(1)))) != 0;
    if (scaled) first = first * shrink;
  }
  DG_INLINE Row<T> operator()(Row<T> x) const {
    if (!scaled) return (centered ? (x - first) - mean : x) * scale;
    return (centered ? (x * shrink - first) - mean : x) * power * scale;
  }
  // The factor of the derivative.
  DG_INLINE Row<T> rescale(Row<T> x) const { return scaled ? x * shrink * power * scale : x * scale; }
};

// y = gain * x_hat + shift, absent where null.
template <class T>
struct Affine {
  const T* gain;
  const T* shift;
  DG_INLINE Row<T> operator()(int64_t k, Row<T> x) const {
    if (gain) x = x * splat_row(gain[k]);
    if (shift) x = x + splat_row(shift[k]);
    return x;
  }
};

// Rows above this are brought down before they are centered.
template <class T>
struct Shrink;
template <>
struct Shrink<double> {
  static constexpr double above = 0x1p900, factor = 0x1p-200;
};
template <>
struct Shrink<float> {
  static constexpr float above = 0x1p100f, factor = 0x1p-40f;
};

// Finds the factors of one group: `m` are the moments of x.
template <class T>
void find_factors(Norm kind, double eps, const T* x, int64_t d, const Moments& m, NormFactors<T>* f) {
  for (int i = 0; i < kLanes<T>; ++i) {
    f->mean[i] = 0;
    f->power[i] = f->scale[i] = f->shrink[i] = 1;
  }
  if (!centers(kind)) {
    if (rescales(kind)) rescaling(m, d, eps, f);
    return;
  }
  // Differences and their sums must stay in range too.
  for (int i = 0; i < kLanes<T>; ++i)
    if (m.max_abs[i] > Shrink<T>::above && m.max_abs[i] <= __DBL_MAX__) f->shrink[i] = Shrink<T>::factor;
  const Row<T> shrink = load_row(f->shrink), first = load_row(x) * shrink;
  const auto shifted = [&](int64_t k) DG_INLINE_LAMBDA { return load_row(x + k * kLanes<T>) * shrink - first; };
  LaneSum<T> sum;
  each_feature(
      d, [&](int64_t k, int chain) DG_INLINE_LAMBDA { sum.add(chain, shifted(k)); },
      [&]() DG_INLINE_LAMBDA { sum.flush(); });
  lane_means(sum, d, f->mean);
  if (!rescales(kind)) {
    for (int i = 0; i < kLanes<T>; ++i) f->scale[i] = 1 / f->shrink[i];
    return;
  }
  const Row<T> mean = load_row(f->mean);
  MomentSum<T> squares;
  each_feature(
      d, [&](int64_t k, int chain) DG_INLINE_LAMBDA { squares.add(chain, shifted(k) - mean); },
      [&]() DG_INLINE_LAMBDA { squares.flush(); });
  // The centered values are not stored: where their squares leave the range, the example is scaled as a whole.
  Moments centered;
  double total[kLanes<T>];
  T top[kLanes<T>];
  squares.squares.result(total);
  store_row(top, squares.top);
  for (int i = 0; i < kLanes<T>; ++i) {
    const double t = static_cast<double>(top[i]);
    double power = safe_power<T>(t), s = total[i];
    if (power != 1 && t <= __DBL_MAX__) {
      s = 0;
      for (int64_t k = 0; k < d; ++k) {
        const T c = (x[k * kLanes<T> + i] * f->shrink[i] - x[i] * f->shrink[i]) - f->mean[i];
        s += (static_cast<double>(c) * power) * (static_cast<double>(c) * power);
      }
    } else {
      power = 1;
    }
    centered.sum_squares[i] = s;
    centered.power[i] = power;
    centered.max_abs[i] = t;
  }
  rescaling(centered, d, eps, f);
}

// y = N(x); y may be x.
template <class T>
void apply_norm(Norm kind, const Equation& eq, const T* x, const NormFactors<T>* f, const T* gain, const T* shift,
                T* y) {
  if (eq.width == 0) return;
  const Affine<T> affine{gain, shift};
  if (kind == Norm::dyt) {
    const Vec<T> alpha = splat(static_cast<T>(eq.dyt_alpha));
    for (int64_t k = 0; k < eq.width; ++k) {
      Row<T> r = load_row(x + k * kLanes<T>);
      for (int i = 0; i < kVectors; ++i) r.v[i] = tanh(alpha * r.v[i]);
      emit(affine(k, r), y + k * kLanes<T>);
    }
  } else if (kind == Norm::none) {
    for (int64_t k = 0; k < eq.width; ++k) emit(affine(k, load_row(x + k * kLanes<T>)), y + k * kLanes<T>);
  } else {
    const Normalized<T> hat(kind, x, *f);
    for (int64_t k = 0; k < eq.width; ++k) emit(affine(k, hat(load_row(x + k * kLanes<T>))), y + k * kLanes<T>);
  }
}

// The derivative of the kinds that center or rescale: t less its mean (with centering), less its part along x_hat
// (unless detached), rescaled.
template <bool Center, class T, class Before, class Visit, class Flush>
DG_INLINE void project(Norm kind, int64_t d, const T* x, const NormFactors<T>& f, const T* t, Before before,
                       Visit visit, Flush flush) {
  const Normalized<T> hat(kind, x, f);
  const bool projects = kind == Norm::rms || kind == Norm::layer;
  T mean[kLanes<T>] = {}, along[kLanes<T>] = {};
  if (projects || Center) {
    LaneSum<T> sum, product;
    each_feature(
        d,
        [&](int64_t k, int chain) DG_INLINE_LAMBDA {
          const Row<T> r = before(k, load_row(t + k * kLanes<T>));
          if (Center) sum.add(chain, r);
          product.add_product(chain, r, hat(load_row(x + k * kLanes<T>)));
        },
        [&]() DG_INLINE_LAMBDA {
          if (Center) sum.flush();
          product.flush();
        });
    if (Center) lane_means(sum, d, mean);
    if (projects) lane_means(product, d, along);
  }
  const Row<T> m = load_row(mean), a = load_row(along);
  each_feature(
      d,
      [&](int64_t k, int chain) DG_INLINE_LAMBDA {
        Row<T> r = before(k, load_row(t + k * kLanes<T>));
        if (Center) r = r - m;
        if (projects) r = r - hat(load_row(x + k * kLanes<T>)) * a;
        visit(k, chain, hat.rescale(r));
      },
      flush);
}

// visit(k, chain, row k of (d x_hat / d x) t), at the input x, with before(k, row) applied to the rows of t; flush()
// after each block of features.
template <class T, class Before, class Visit, class Flush>
DG_INLINE void norm_derivative(Norm kind, const Equation& eq, const T* x, const NormFactors<T>* f, const T* t,
                               Before before, Visit visit, Flush flush) {
  const int64_t d = eq.width;
  if (d == 0) return;
  if (kind == Norm::none) {
    const auto same = [&](int64_t k, int chain)
                          DG_INLINE_LAMBDA { visit(k, chain, before(k, load_row(t + k * kLanes<T>))); };
    each_feature(d, same, flush);
    return;
  }
  if (kind == Norm::dyt) {
    const Vec<T> alpha = splat(static_cast<T>(eq.dyt_alpha));
    const auto diagonal = [&](int64_t k, int chain) DG_INLINE_LAMBDA {
      Row<T> r = before(k, load_row(t + k * kLanes<T>));
      for (int i = 0; i < kVectors; ++i) {
        Vec<T> y, slope;
        tanh(alpha * load(x + k * kLanes<T> + i * kWidth<T>), y, slope);
        slope *= alpha;
        r.v[i] = select<T>(slope == Vec<T>{}, Vec<T>{}, r.v[i] * slope);
      }
      visit(k, chain, r);
    };
    each_feature(d, diagonal, flush);
    return;
  }
  if (centers(kind))
    project<true>(kind, d, x, *f, t, before, visit, flush);
  else
    project<false>(kind, d, x, *f, t, before, visit, flush);
}

// scale times the sums over examples of t * x_hat and of t, the gradients of gain and shift; a scale of 0 leaves the
// sums out, infinities and all.
template <class T>
void norm_parameter_sums(Norm kind, const Equation& eq, const T* x, const NormFactors<T>* f, const T* t, double scale,
                         int examples, double* gain, double* shift) {
  if (eq.width == 0) return;
  const auto row = [&](int64_t k) { return load_row(t + k * kLanes<T>); };
  const auto sum = [&](auto of, double* totals) { scaled_totals_of<T>(eq.width, examples, scale, of, totals); };
  if (shift) sum(row, shift);
  if (!gain) return;
  if (kind == Norm::none) {
    sum([&](int64_t k) { return row(k) * load_row(x + k * kLanes<T>); }, gain);
  } else if (kind == Norm::dyt) {
    const Vec<T> alpha = splat(static_cast<T>(eq.dyt_alpha));
    const auto product = [&](int64_t k) {
      Row<T> y = load_row(x + k * kLanes<T>);
      for (int i = 0; i < kVectors; ++i) y.v[i] = tanh(alpha * y.v[i]);
      return row(k) * y;
    };
    sum(product, gain);
  } else {
    const Normalized<T> hat(kind, x, *f);
    sum([&](int64_t k) { return row(k) * hat(load_row(x + k * kLanes<T>)); }, gain);
  }
}

}  // namespace
