// Random words to pairs of normals (Box & Muller 1958).
//
// Only operations that IEEE 754 rounds the same way everywhere, in a fixed order, and none fused: every instruction set
// makes the same bits, and so does the NumPy reference, which repeats what is here.
#pragma once

#include "common/pack.hpp"
#include "random/philox.hpp"

namespace {

// Vectors a pack.
constexpr int kPack = 4;

template <class T>
using Reals = Pack<T, kPack>;
using Words = UnsignedPack<float, kPack>;

// The low halves of two vectors of words, `even` in even lanes.
DG_INLINE Lanes32 interleave(Lanes64 even, Lanes64 odd) { return bit_cast<Lanes32>(halves(even, odd << 32)); }

// c[0] + c[1] z + c[2] z^2 + ... by Horner's rule.
template <class T, int N>
DG_INLINE Reals<T> horner(const T (&c)[N], Reals<T> z) {
  Reals<T> sum = z * c[N - 1] + c[N - 2];
  for (int i = N - 3; i >= 0; --i) sum = sum * z + c[i];
  return sum;
}

// 2^exponent times (1 + word / 2^52), by putting the word where the mantissa is.
DG_INLINE Vec<double> in_mantissa(Lanes64 word, int exponent) {
  return bit_cast<Vec<double>>(halves(word, splat_word(static_cast<uint64_t>(exponent + 1023) << 52)));
}

// (n + 1/2) / 2^64 with n of 64 bits, rounded once: positive, at most 1, and fine grained near 0, where the tails are.
DG_INLINE Reals<double> radius_uniform(const Lanes64 (&low)[kPack], const Lanes64 (&high)[kPack]) {
  Reals<double> u;
  for (int i = 0; i < kPack; ++i)
    u.v[i] = (in_mantissa(high[i], 20) - 0x1p20) + (in_mantissa(low[i], -12) - (0x1p-12 - 0x1p-65));
  return u;
}

// The same with n of 32 bits and 2^32.
DG_INLINE Reals<float> radius_uniform(Words n) {
  Reals<float> u;
  for (int i = 0; i < kPack; ++i) {
    const Lanes32 high = (n.v[i] >> 16) | ((7 + 127u) << 23), low = (n.v[i] & 0xffff) | ((127u - 9) << 23);
    u.v[i] = (bit_cast<Vec<float>>(high) - 0x1p7f) + (bit_cast<Vec<float>>(low) - (0x1p-9f - 0x1p-33f));
  }
  return u;
}

// An angle: `turn` in [-1/2, 1/2] counts right angles; where the sign bit of `swapped` is set, cosine and sine change
// places; the sign bit of `negative` goes to the cosine.
template <class T>
struct Angle {
  Reals<T> turn;
  IntPack<T, kPack> swapped, negative;
};

// From 64 bits: the top one swaps, the others are the turn, and the lowest, which the turn hardly feels, negates.
DG_INLINE Angle<double> angle(const Lanes64 (&low)[kPack], const Lanes64 (&high)[kPack]) {
  Angle<double> a;
  for (int i = 0; i < kPack; ++i) {
    const Vec<double> top = in_mantissa(high[i] & splat_word(0x7fffffff), 21);
    a.turn.v[i] = (top - (0x1p21 + 0x1p-11 + 0.5)) + in_mantissa(low[i], -11);
    a.swapped.v[i] = bit_cast<Int<double>>(high[i] << 32);
    a.negative.v[i] = bit_cast<Int<double>>(low[i] << 63);
  }
  return a;
}

// The same from 32 bits.
DG_INLINE Angle<float> angle(Words n) {
  Angle<float> a;
  for (int i = 0; i < kPack; ++i) {
    const Int<float> rest = bit_cast<Int<float>>((n.v[i] << 1) | 1);
    a.turn.v[i] = __builtin_convertvector(rest, Vec<float>) * 0x1p-32f;
    a.swapped.v[i] = bit_cast<Int<float>>(n.v[i]);
    a.negative.v[i] = bit_cast<Int<float>>(n.v[i] << 31);
  }
  return a;
}

// `a` where the sign bit of `sign` is set, else `b`.
template <class T>
DG_INLINE Vec<T> by_sign(Int<T> sign, Vec<T> a, Vec<T> b) {
  return select<T>(sign < 0, a, b);
}
#if defined(__AVX2__) && !defined(__AVX512F__)
template <>
DG_INLINE Vec<double> by_sign<double>(Int<double> sign, Vec<double> a, Vec<double> b) {
  return _mm256_blendv_pd(b, a, bit_cast<__m256d>(sign));
}
template <>
DG_INLINE Vec<float> by_sign<float>(Int<float> sign, Vec<float> a, Vec<float> b) {
  return _mm256_blendv_ps(b, a, bit_cast<__m256>(sign));
}
#endif

// u = m / 2^n with m in [sqrt(1/2), sqrt(2)), for positive u that are not denormal and at most 1.
DG_INLINE void split(Reals<double> u, Reals<double>& m, Reals<double>& n) {
  constexpr int64_t kOne = 0x3ff0000000000000, kRoot = 0x3fe6a09e667f3bcd, kMantissa = 0x000fffffffffffff;
  for (int i = 0; i < kPack; ++i) {
    const Lanes64 shifted = bit_cast<Lanes64>(u.v[i]) + static_cast<uint64_t>(kOne - kRoot);
    // 2^52 plus the exponent, as an integer and as a number.
    const Lanes64 exponent = (shifted >> 52) | static_cast<uint64_t>(int64_t{1075} << 52);
    n.v[i] = (0x1p52 + 1023) - bit_cast<Vec<double>>(exponent);
    m.v[i] = bit_cast<Vec<double>>((shifted & static_cast<uint64_t>(kMantissa)) + static_cast<uint64_t>(kRoot));
  }
}

DG_INLINE void split(Reals<float> u, Reals<float>& m, Reals<float>& n) {
  constexpr uint32_t kOne = 0x3f800000, kRoot = 0x3f3504f3, kMantissa = 0x007fffff;
  for (int i = 0; i < kPack; ++i) {
    const Lanes32 shifted = bit_cast<Lanes32>(u.v[i]) + (kOne - kRoot);
    n.v[i] = __builtin_convertvector(127 - bit_cast<Int<float>>(shifted >> 23), Vec<float>);
    m.v[i] = bit_cast<Vec<float>>((shifted & kMantissa) + kRoot);
  }
}

template <class T>
struct Coefficients;

// Weighted least squares at Chebyshev nodes, the leading coefficients rounded first.  With s = (m - 1) / (m + 1) and
// z = s^2, -2 ln m = -4 s + s z log(z); with z = turn^2, the sine of a turn is turn * sine(z), and its cosine
// 1 + z cosine(z).
template <>
struct Coefficients<double> {
  static constexpr double log_4 = 0x1.62e42fefa39efp+0;
  static constexpr double log[] = {-0x1.555555555389dp+0, -0x1.999999a2b8bcdp-1, -0x1.249241641ba3fp-1,
                                   -0x1.c722818125f21p-2, -0x1.732b16c1bd04cp-2, -0x1.58830a01c95b8p-2};
  static constexpr double sine[] = {0x1.921fb54442d18p+0,  -0x1.4abbce625be09p-1, 0x1.466bc67754fe4p-4,
                                    -0x1.32d2ccdfe644ap-8, 0x1.50782d5b6b2d1p-13, -0x1.e2fe733e88a92p-19,
                                    0x1.e356905f06f74p-25};
  static constexpr double cosine[] = {-0x1.3bd3cc9be45a3p+0, 0x1.03c1f081b137ap-2,   -0x1.55d3c7dca1934p-6,
                                      0x1.e1f4fbe95e935p-11, -0x1.a6c9f8ab1f912p-16, 0x1.f3ecb7560bbdfp-22};
};

template <>
struct Coefficients<float> {
  static constexpr float log_4 = 0x1.62e43p+0f;
  static constexpr float log[] = {-0x1.55557ap+0f, -0x1.995ed8p-1f, -0x1.31e03cp-1f};
  static constexpr float sine[] = {0x1.921fb6p+0f, -0x1.4abbeep-1f, 0x1.466be6p-4f, -0x1.2f7c3ep-8f};
  static constexpr float cosine[] = {-0x1.3bd3ccp+0f, 0x1.03c1b6p-2f, -0x1.55b684p-6f, 0x1.d61e28p-11f};
};

template <class T>
struct Pair {
  Reals<T> a, b;
};

// Two independent normals: sqrt(-2 ln u) times the cosine and the sine.
template <class T>
DG_INLINE Pair<T> pair(Reals<T> u, Angle<T> angle) {
  using C = Coefficients<T>;
  Reals<T> m, n;
  split(u, m, n);
  const Reals<T> s = (m - T(1)) / (m + T(1)), z = s * s;
  const Reals<T> of_m = s * T(-4) + s * (z * horner(C::log, z));
  const Reals<T> radius = sqrt(n * C::log_4 + of_m);

  const Reals<T> t = angle.turn, y = t * t;
  const Reals<T> sine = t * horner(C::sine, y);
  const Reals<T> cosine = y * horner(C::cosine, y) + T(1);
  Pair<T> p;
  for (int i = 0; i < kPack; ++i) {
    const Vec<T> c = bit_cast<Vec<T>>(bit_cast<Int<T>>(cosine.v[i]) | angle.negative.v[i]);
    p.a.v[i] = by_sign<T>(angle.swapped.v[i], sine.v[i], c);
    p.b.v[i] = by_sign<T>(angle.swapped.v[i], c, sine.v[i]);
  }
  return {radius * p.a, radius * p.b};
}

}  // namespace
