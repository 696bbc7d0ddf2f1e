// The activations and their derivatives.
//
// Include this only in per-instruction-set units.  Each activation is a struct, derived from Elementwise, with
//
//   template <class T, int N>
//   static void apply(Pack<T, N> z, const ActivationParameters<T>& p, Pack<T, N>& value, Pack<T, N>& derivative);
//
// It is inlined, so that a caller who ignores the derivative does not pay for it.
//
// A NaN gives a NaN value and, for the smooth activations and abs, a NaN derivative; relu and leaky_relu have the
// derivative that the false comparison z > 0 gives, 0 and slope; identity's is 1 everywhere.
//
// GELU and its kin are f(z) = z F(z), with F a distribution function symmetric about 0.  Hence
//
//   f(z) = max(z, 0) - |z| F(-|z|)     and     f'(z) + f'(-z) = 1,
//
// so only the tail F(-|z|) is ever computed.  It is small and has full relative accuracy, which 1 - F(|z|) would lose.
#pragma once

#include "common/simd.hpp"
#include "common/vector_math.hpp"

namespace {

template <class T>
struct ActivationParameters {
  T slope;  // of leaky_relu where z <= 0
};

// Makes eval() of rows of a struct's apply().
template <class Activation>
struct Elementwise {
  template <class T>
  static DG_INLINE void eval(Row<T> z, const ActivationParameters<T>& p, Row<T>& value, Row<T>& derivative) {
    Pack<T, kVectors> v, d;
    Activation::apply(pack(z), p, v, d);
    value = row(v);
    derivative = row(d);
  }
};

struct Relu : Elementwise<Relu> {
  template <class T, int N>
  static DG_INLINE void apply(Pack<T, N> z, const ActivationParameters<T>&, Pack<T, N>& value, Pack<T, N>& derivative) {
    value = at_least(0, z);
    derivative = one_where(z > 0);
  }
};

struct LeakyRelu : Elementwise<LeakyRelu> {
  template <class T, int N>
  static DG_INLINE void apply(Pack<T, N> z, const ActivationParameters<T>& p, Pack<T, N>& value,
                              Pack<T, N>& derivative) {
    // A slope of zero makes this relu, at minus infinity too.
    const T floor = p.slope == 0 ? -MathConstants<T>::kLargest : -T(__builtin_inf());
    const IntPack<T, N> positive = z > 0;
    value = select(positive, z, at_least(floor, z) * p.slope);
    derivative = select(positive, fill<N>(T(1)), p.slope);
  }
};

struct Abs : Elementwise<Abs> {
  template <class T, int N>
  static DG_INLINE void apply(Pack<T, N> z, const ActivationParameters<T>&, Pack<T, N>& value, Pack<T, N>& derivative) {
    value = abs(z);
    derivative = select(value > 0, copy_sign(fill<N>(T(1)), z), z);  // else zero or NaN
  }
};

struct Identity : Elementwise<Identity> {
  template <class T, int N>
  static DG_INLINE void apply(Pack<T, N> z, const ActivationParameters<T>&, Pack<T, N>& value, Pack<T, N>& derivative) {
    value = z;
    derivative = fill<N>(T(1));
  }
};

struct Tanh : Elementwise<Tanh> {
  template <class T, int N>
  static DG_INLINE void apply(Pack<T, N> z, const ActivationParameters<T>&, Pack<T, N>& value, Pack<T, N>& derivative) {
    tanh(z, value, derivative);
  }
};

struct Sigmoid : Elementwise<Sigmoid> {
  template <class T, int N>
  static DG_INLINE void apply(Pack<T, N> z, const ActivationParameters<T>&, Pack<T, N>& value, Pack<T, N>& derivative) {
    const Exponential<T, N> e = exponential(at_least(-MathConstants<T>::kLogisticLimit, minus_abs(z)));
    const LogisticTail<T, N> small = logistic_tail(e);
    const Pack<T, N> large = 1 - small.tail;
    value = select(z < 0, small.tail, large);
    derivative = (small.unscaled * large) * e.second;
  }
};

// With a = |z|, cut off where the tail of F has vanished: f(z) and f'(z) from a F(-a) and f'(-a), both but for a
// factor of `scale`.
template <class T, int N>
DG_INLINE void gated(Pack<T, N> z, Pack<T, N> a_tail, Pack<T, N> tail_derivative, Pack<T, N> scale, Pack<T, N>& value,
                     Pack<T, N>& derivative) {
  value = fma(-a_tail, scale, at_least(0, z));
  const Pack<T, N> at_minus_a = tail_derivative * scale;
  derivative = select(z < 0, at_minus_a, 1 - at_minus_a);
}

// x / (1 + e^-x).
struct Silu : Elementwise<Silu> {
  template <class T, int N>
  static DG_INLINE void apply(Pack<T, N> z, const ActivationParameters<T>&, Pack<T, N>& value, Pack<T, N>& derivative) {
    const Pack<T, N> a = at_most(MathConstants<T>::kLogisticLimit, abs(z));
    const Exponential<T, N> e = exponential(-a);
    const LogisticTail<T, N> small = logistic_tail(e);
    const Pack<T, N> large = 1 - small.tail;
    gated(z, a * small.unscaled, small.unscaled * fma(-a, large, 1), e.second, value, derivative);
  }
};

// x Phi(x).
struct Gelu : Elementwise<Gelu> {
  template <class T, int N>
  static DG_INLINE void apply(Pack<T, N> z, const ActivationParameters<T>&, Pack<T, N>& value, Pack<T, N>& derivative) {
    using C = MathConstants<T>;
    const Pack<T, N> a = at_most(C::kNormalLimit, abs(z));
    const Exponential<T, N> e = gaussian(a);
    const Pack<T, N> y = e.unscaled();
    Pack<T, N> ratio, a_ratio;
    mills(a, ratio, a_ratio);
    gated(z, y * a_ratio, y * fma(a, -C::kInverseRoot2Pi, ratio), e.second, value, derivative);
  }
};

// x sigmoid(w) with w = 2 c (x + 0.044715 x^3) and c = sqrt(2 / pi); equally x (1 + tanh(w / 2)) / 2.
//
// In the tail an error of w is one, relatively, of the result.  So w = kCubic (x^3 + kLinear x), and the bracket is
// kept in two parts.  The upper one is that of x rounded to a grid, so coarse that the result is exact.
template <class T>
struct GeluTanhConstants;

template <>
struct GeluTanhConstants<double> {
  static constexpr double kCubic = 0.07135481627260025;                                      // 2 c * 0.044715
  static constexpr double kLinearHigh = 0x1.65d25eep4, kLinearLow = -0x1.3093f01586cc7p-27;  // 1 / 0.044715

  static constexpr double kPeriods = 0.1029432395800235;                                        // kCubic / ln(2)
  static constexpr double kPeriodHigh = 0x1.36d9d56d78p3, kPeriodLow = -0x1.5b6f6379857f9p-38;  // ln(2) / kCubic

  static constexpr double kGrid = 0x1.8p40;  // adding this and taking it off again rounds to multiples of 2^-12
  static constexpr double kLimit = 21.75;    // where the tail has vanished, whatever it is multiplied by

  static constexpr double kSlope = 1.5957691216057308, kCurvature = 0.21406444881780073;  // w' = 2c + 3 kCubic x^2
};

template <>
struct GeluTanhConstants<float> {
  static constexpr float kCubic = 0.07135481627260025f;
  static constexpr float kLinearHigh = 0x1.65dp4f, kLinearLow = 0.0005787522363860003f;

  static constexpr float kPeriods = 0.1029432395800235f;
  static constexpr float kPeriodHigh = 0x1.36dap3f, kPeriodLow = -2.030010130390439e-05f;

  static constexpr float kGrid = 0x1.8p19f;  // multiples of 2^-4
  static constexpr float kLimit = 11.125f;

  static constexpr float kSlope = 1.5957691216057308f, kCurvature = 0.21406444881780073f;
};

struct GeluTanh : Elementwise<GeluTanh> {
  template <class T, int N>
  static DG_INLINE void apply(Pack<T, N> z, const ActivationParameters<T>&, Pack<T, N>& value, Pack<T, N>& derivative) {
    using C = GeluTanhConstants<T>;
    const Pack<T, N> a = at_most(C::kLimit, abs(z));
    const Pack<T, N> coarse = (a + C::kGrid) - C::kGrid;
    const Pack<T, N> fine = a - coarse;
    const Pack<T, N> factor = fma(coarse, coarse, C::kLinearHigh);
    const Pack<T, N> high = coarse * factor;
    const Pack<T, N> low = fma(fine, fma(a, a + coarse, factor), a * C::kLinearLow);
    const Periods<T, N> n = nearest_periods(high + low, -C::kPeriods);
    const Pack<T, N> above = fma(n.count, C::kPeriodHigh, high);
    const Pack<T, N> below = fma(n.count, C::kPeriodLow, low);
    const Exponential<T, N> e = exponential((above + below) * -C::kCubic, n.biased);

    const LogisticTail<T, N> small = logistic_tail(e);
    const Pack<T, N> large = 1 - small.tail;
    const Pack<T, N> growth = a * fma(a * a, C::kCurvature, C::kSlope);  // a w'(a)
    gated(z, a * small.unscaled, small.unscaled * fma(-growth, large, 1), e.second, value, derivative);
  }
};

}  // namespace
