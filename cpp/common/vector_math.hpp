// Elementary functions of SIMD vectors: tanh, and the tails of the logistic and normal distributions.
//
// Include this in per-instruction-set units only.  There are no branches: a lane's bits depend on
// that lane's input alone.  NaN gives NaN, infinities their limits, and results fade through the subnormal
// numbers to zero.  Where a rounding error would be amplified (an exponent's is, by its size), products are
// exact because of where their factors are cut, with or without a fused multiply-add.
//
// The coefficients were fitted by us with the Remez exchange algorithm in 50-digit arithmetic, the leading ones
// rounded first and the others fitted again around them.  The errors given are those of the rounded coefficients.
#pragma once

#include "pack.hpp"

namespace {

template <class T>
struct MathConstants;

template <>
struct MathConstants<double> {
  static constexpr int kMantissaBits = 52;
  static constexpr double kLargest = 0x1.fffffffffffffp1023;

  // Added to a small number, this rounds it to an integer n and leaves n + 2046 in the lowest bits.
  static constexpr double kShift = 0x1.8p52 + 2046;

  // ln 2 and 2 ln 2, each in two parts; the upper part times any exponent is exact.
  static constexpr double kLog2E = 1.4426950408889634;
  static constexpr double kLn2High = 0x1.62e42fefa4p-1, kLn2Low = -0x1.8432a1b0e2634p-43;

  // e^-x vanishes here even when multiplied by x, as does e^(-x^2/2) when multiplied by x^2.
  static constexpr double kLogisticLimit = 752, kNormalLimit = 38.75;

  // Keeps the upper 26 bits of a mantissa, whose squares are exact.
  static constexpr int64_t kUpperHalf = -(INT64_C(1) << 27);

  static constexpr double kInverseRoot2Pi = 0.3989422804014327;  // 1 / sqrt(2 pi)
};

template <>
struct MathConstants<float> {
  static constexpr int kMantissaBits = 23;
  static constexpr float kLargest = 0x1.fffffep127f;

  // The same; n + 254.
  static constexpr float kShift = 0x1.8p23f + 254;

  static constexpr float kLog2E = 1.44269504f;
  static constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 1.428606765330187e-06f;

  static constexpr float kLogisticLimit = 112, kNormalLimit = 14.625f;

  static constexpr int32_t kUpperHalf = -(INT32_C(1) << 12);

  static constexpr float kInverseRoot2Pi = 0.3989423f;
};

// (e^r - 1 - r) / r^2 on |r| <= 0.3467.  Degree 9; e^r - 1 is within 1.9e-17 of its value, relatively.
constexpr double kExpTail64[] = {
    0.5000000000000006,     0.16666666666666619,    0.041666666666572316,   0.008333333333362407,
    0.0013888888933037298,  0.00019841269796460663, 2.4801503465731445e-05, 2.755732153034617e-06,
    2.7626773244842475e-07, 2.5086317391909934e-08,
};

// The same in single precision.  Degree 4; 1.4e-8.
constexpr float kExpTail32[] = {0.49999997f, 0.16666539f, 0.04166775f, 0.008367139f, 0.0013836372f};

// (t + 5) exp(t^2/2) Phi(-t) in y = t / (t + 5) - 1/2, for 0 <= t <= 38.75, Phi the normal distribution function.
// Degree 21; relative error 5.7e-17.
constexpr double kMillsShift64 = 5;
constexpr double kMills64[] = {
    0.769193049750063,     -1.330765005780113,   1.9812224638798865,    -2.508265253370552,    2.6403258587299847,
    -2.211796438590679,    1.33088427490025,     -0.38315222718452113,  -0.20425455476713067,  0.27898833867317707,
    -0.06080099299853545,  -0.10191461320397233, 0.06832955895370267,   0.032616793655870724,  -0.04539874692387682,
    -0.011078645063768575, 0.028515863095957942, 0.0058174784400582425, -0.017589631085767367, -0.005763227120086377,
    0.008118470350383749,  0.004869470501658765,
};

// (t + 4) exp(t^2/2) Phi(-t) in y = t / (t + 4) - 1/2, for 0 <= t <= 14.625.  Degree 9; 2.7e-8.
constexpr float kMillsShift32 = 4;
constexpr float kMills32[] = {
    0.75528514f,  -1.2157931f,  1.548545f,   -1.4921821f, 0.9665902f,
    -0.24096632f, -0.22694547f, 0.20081939f, 0.05789031f, -0.054286983f,
};

// The sum of c[I + Step * j] s^j.
template <int I, int Step, class T, int Terms, int N>
DG_INLINE Pack<T, N> chain(const T (&c)[Terms], Pack<T, N> s) {
  if constexpr (I + 2 * Step < Terms) {
    return fma(chain<I + Step, Step>(c, s), s, c[I]);
  } else {
    static_assert(I + Step < Terms);
    return fma(s, c[I + Step], c[I]);
  }
}

// The sum of c[j] x^j, as two or four interleaved chains: much of the latency of one, at no loss of accuracy.
template <class T, int Terms, int N>
DG_INLINE Pack<T, N> polynomial(const T (&c)[Terms], Pack<T, N> x, Pack<T, N> x_squared) {
  if constexpr (Terms > 12) {
    const Pack<T, N> s = x_squared * x_squared;
    return fma(fma(chain<3, 4>(c, s), x, chain<2, 4>(c, s)), x_squared, fma(chain<1, 4>(c, s), x, chain<0, 4>(c, s)));
  } else {
    return fma(chain<1, 2>(c, x_squared), x, chain<0, 2>(c, x_squared));
  }
}

// An exponential as (1 + m) * first * second, the last two powers of two.  Neither is subnormal, and nor is
// (1 + m) * first, so that factors can be multiplied in before `second` takes the product out of range.
template <class T, int N>
struct Exponential {
  Pack<T, N> m, first, second;

  DG_INLINE Pack<T, N> unscaled() const { return fma(m, first, first); }  // but for `second`
};

// A multiple of a period, to be subtracted from an exponent.
template <class T, int N>
struct Periods {
  Pack<T, N> count;
  UnsignedPack<T, N> biased;  // count plus twice the bias of exponents, under the bits of kShift
};

template <class T, int N>
DG_INLINE Periods<T, N> nearest_periods(Pack<T, N> x, Real<T> periods_per_unit) {
  const T shift = MathConstants<T>::kShift;
  const Pack<T, N> shifted = fma(x, periods_per_unit, shift);
  Periods<T, N> n;
  n.count = shifted - shift;
  for (int i = 0; i < N; ++i) n.biased.v[i] = bit_cast<Unsigned<T>>(shifted.v[i]);
  return n;
}

template <int N>
DG_INLINE Pack<double, N> exp_tail(Pack<double, N> r, Pack<double, N> r_squared) {
  return polynomial(kExpTail64, r, r_squared);
}
template <int N>
DG_INLINE Pack<float, N> exp_tail(Pack<float, N> r, Pack<float, N> r_squared) {
  return polynomial(kExpTail32, r, r_squared);
}

// 2^count e^r for |r| <= ln(2) / 2.
template <class T, int N>
DG_INLINE Exponential<T, N> exponential(Pack<T, N> r, UnsignedPack<T, N> biased) {
  constexpr int kBits = MathConstants<T>::kMantissaBits;
  const Pack<T, N> r_squared = r * r;
  Exponential<T, N> e;
  e.m = fma(r_squared, exp_tail(r, r_squared), r);
  for (int i = 0; i < N; ++i) {
    const Unsigned<T> half = biased.v[i] >> 1;
    e.first.v[i] = bit_cast<Vec<T>>(half << kBits);
    e.second.v[i] = bit_cast<Vec<T>>((biased.v[i] - half) << kBits);
  }
  return e;
}

// e^x for x within the range of exp, or a little beyond.
template <class T, int N>
DG_INLINE Exponential<T, N> exponential(Pack<T, N> x) {
  using C = MathConstants<T>;
  const Periods<T, N> n = nearest_periods(x, C::kLog2E);
  return exponential(fma(n.count, -C::kLn2Low, fma(n.count, -C::kLn2High, x)), n.biased);
}

// e^(-t^2/2) for 0 <= t <= kNormalLimit.
template <class T, int N>
DG_INLINE Exponential<T, N> gaussian(Pack<T, N> t) {
  using C = MathConstants<T>;
#if defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)
  const Pack<T, N> high = t * t;
  const Pack<T, N> low = fma(t, t, -high);
  const Periods<T, N> n = nearest_periods(high, -C::kLog2E / 2);
#else
  Pack<T, N> upper = t;
  for (int i = 0; i < N; ++i) {
    upper.v[i] = bit_cast<Vec<T>>(bit_cast<Int<T>>(t.v[i]) & splat_int<T>(C::kUpperHalf));
  }
  const Pack<T, N> high = upper * upper;
  const Pack<T, N> low = (t - upper) * (t + upper);
  const Periods<T, N> n = nearest_periods(high + low, -C::kLog2E / 2);
#endif
  const Pack<T, N> above = fma(n.count, 2 * C::kLn2High, high);
  const Pack<T, N> below = fma(n.count, 2 * C::kLn2Low, low);
  return exponential((above + below) * T(-0.5), n.biased);
}

// The logistic function of a negative number, e / (1 + e), given its exponential: tail, and tail as
// unscaled * e.second, which has not lost accuracy to the subnormal range.
template <class T, int N>
struct LogisticTail {
  Pack<T, N> unscaled, tail;
};

template <class T, int N>
DG_INLINE LogisticTail<T, N> logistic_tail(Exponential<T, N> e) {
  const Pack<T, N> y = e.unscaled();
  const Pack<T, N> t = y * e.second;
  const Pack<T, N> unscaled = fma(-t, y / (t + 1), y);  // the quotient again, but for the rounding of 1 + t
  return {unscaled, unscaled * e.second};
}

template <int N>
DG_INLINE Pack<double, N> mills_polynomial(Pack<double, N> y) {
  return polynomial(kMills64, y, y * y);
}
template <int N>
DG_INLINE Pack<float, N> mills_polynomial(Pack<float, N> y) {
  return polynomial(kMills32, y, y * y);
}

// M(t) = exp(t^2/2) Phi(-t), and t M(t), for 0 <= t <= kNormalLimit.
template <class T, int N>
DG_INLINE void mills(Pack<T, N> t, Pack<T, N>& ratio, Pack<T, N>& t_ratio) {
  constexpr T kShift = sizeof(T) == sizeof(double) ? T(kMillsShift64) : T(kMillsShift32);
  const Pack<T, N> q = 1 / (t + kShift);
  const Pack<T, N> tq = t * q;  // its error vanishes with t: M is steepest at 0
  const Pack<T, N> p = mills_polynomial(tq - T(0.5));
  ratio = q * p;
  t_ratio = tq * p;
}

// tanh and its derivative, both to full relative accuracy.
template <class T, int N>
DG_INLINE void tanh(Pack<T, N> x, Pack<T, N>& value, Pack<T, N>& derivative) {
  using C = MathConstants<T>;
  const Exponential<T, N> e = exponential(at_least(-C::kLogisticLimit, 2 * minus_abs(x)));
  const Pack<T, N> half = (e.first * T(0.5)) * e.second;
  const Pack<T, N> h = fma(e.m, half, half - T(0.5));  // (e^(-2|x|) - 1) / 2
  const Pack<T, N> minus_size = fma(-h, h / (h + 1), h);  // the quotient again, but for the rounding of h + 1
  value = copy_sign(minus_size, x);
  const Pack<T, N> sum = 1 - minus_size;  // and the derivative is e^(-2|x|) sum^2
  derivative = (e.unscaled() * sum * sum) * e.second;
}

template <class T>
DG_INLINE Pack<T, 1> pack(Vec<T> a) {
  return {{a}};
}

template <class T>
DG_INLINE void tanh_of(Vec<T> x, Vec<T>& value, Vec<T>& derivative) {
  Pack<T, 1> v, d;
  tanh(pack<T>(x), v, d);
  value = v.v[0];
  derivative = d.v[0];
}
DG_INLINE void tanh(Vec<double> x, Vec<double>& value, Vec<double>& derivative) {
  tanh_of<double>(x, value, derivative);
}
DG_INLINE void tanh(Vec<float> x, Vec<float>& value, Vec<float>& derivative) { tanh_of<float>(x, value, derivative); }

DG_INLINE Vec<double> tanh(Vec<double> x) {
  Vec<double> value, derivative;
  tanh(x, value, derivative);
  return value;
}
DG_INLINE Vec<float> tanh(Vec<float> x) {
  Vec<float> value, derivative;
  tanh(x, value, derivative);
  return value;
}

template <class T>
DG_INLINE Pack<T, kVectors> pack(Row<T> a) {
  Pack<T, kVectors> r;
  for (int i = 0; i < kVectors; ++i) r.v[i] = a.v[i];
  return r;
}

template <class T>
DG_INLINE Row<T> row(Pack<T, kVectors> a) {
  Row<T> r;
  for (int i = 0; i < kVectors; ++i) r.v[i] = a.v[i];
  return r;
}

// The same of a whole row, its vectors interleaved; faster than one by one.
template <class T>
DG_INLINE void tanh(Row<T> x, Row<T>& value, Row<T>& derivative) {
  Pack<T, kVectors> v, d;
  tanh(pack(x), v, d);
  value = row(v);
  derivative = row(d);
}

}  // namespace
