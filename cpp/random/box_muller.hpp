// Random words to pairs of normals (Box & Muller 1958).
//
// Only operations that IEEE 754 rounds the same way everywhere, in a fixed order, and none fused: every instruction set
// makes the same bits, and so does the NumPy reference, which repeats what is here.
#pragma once

#include "random/philox.hpp"

namespace {

// A row of words of 32 bits.
struct Words {
  Narrow v[kVectors];
};

// The low halves of two vectors of words, `even` in even lanes.
DG_INLINE Narrow side_by_side(Wide even, Wide odd) { return bit_cast<Narrow>(halves(even, odd << 32)); }

template <class T>
DG_INLINE Row<T> operator/(Row<T> a, Row<T> b) {
  for (int i = 0; i < kVectors; ++i) a.v[i] /= b.v[i];
  return a;
}

template <class T>
DG_INLINE Row<T> sqrt(Row<T> a) {
  for (int i = 0; i < kVectors; ++i) a.v[i] = sqrt(a.v[i]);
  return a;
}

template <class T>
DG_INLINE Row<T> operator+(Row<T> a, T s) {
  return a + splat_row(s);
}

template <class T>
DG_INLINE Row<T> operator-(Row<T> a, T s) {
  return a - splat_row(s);
}

template <class T>
DG_INLINE Row<T> operator*(Row<T> a, T s) {
  return a * splat_row(s);
}

// c[0] + c[1] z + c[2] z^2 + ... by Horner's rule.
template <class T, int N>
DG_INLINE Row<T> polynomial(const T (&c)[N], Row<T> z) {
  Row<T> sum = splat_row(c[N - 1]);
  for (int i = N - 2; i >= 0; --i) sum = sum * z + c[i];
  return sum;
}

// 2^exponent times (1 + word / 2^52), by putting the word where the mantissa is.
DG_INLINE Vec<double> in_mantissa(Wide word, int exponent) {
  return bit_cast<Vec<double>>(halves(word, splat_wide(static_cast<uint64_t>(exponent + 1023) << 52)));
}

// (n + 1/2) / 2^64 with n of 64 bits, rounded once: positive, at most 1, and fine grained near 0, where the tails are.
DG_INLINE Row<double> radius_uniform(const Wide (&low)[kVectors], const Wide (&high)[kVectors]) {
  Row<double> u;
  for (int i = 0; i < kVectors; ++i)
    u.v[i] = (in_mantissa(high[i], 20) - 0x1p20) + (in_mantissa(low[i], -12) - (0x1p-12 - 0x1p-65));
  return u;
}

// The same with n of 32 bits and 2^32.
DG_INLINE Row<float> radius_uniform(Words n) {
  Row<float> u;
  const Narrow half_word = splat_int<float>(0xffff) + Narrow{};
  for (int i = 0; i < kVectors; ++i) {
    const Narrow high = (n.v[i] >> 16) | ((7 + 127u) << 23), low = (n.v[i] & half_word) | ((127u - 9) << 23);
    u.v[i] = (bit_cast<Vec<float>>(high) - 0x1p7f) + (bit_cast<Vec<float>>(low) - (0x1p-9f - 0x1p-33f));
  }
  return u;
}

// An angle: `turn` in [-1/2, 1/2] counts right angles; where `swapped`, cosine and sine change places, and the bit of
// `negative` that is a sign goes to the cosine.
template <class T>
struct Angle {
  Row<T> turn;
  Int<T> swapped[kVectors], negative[kVectors];
};

// From 64 bits: the top one swaps, the next negates, and the rest, plus a half, is the turn, never 0.
DG_INLINE Angle<double> angle(const Wide (&low)[kVectors], const Wide (&high)[kVectors]) {
  Angle<double> a;
  for (int i = 0; i < kVectors; ++i) {
    const Vec<double> top = in_mantissa(high[i] & splat_wide(0x3fffffff), 22);
    a.turn.v[i] = (top - (0x1p22 + 0.5)) + (in_mantissa(low[i], -10) - (0x1p-10 - 0x1p-63));
    a.swapped[i] = bit_cast<Int<double>>(high[i] << 32) < 0;
    a.negative[i] = bit_cast<Int<double>>((high[i] << 33) & splat_wide(uint64_t{1} << 63));
  }
  return a;
}

// The same from 32 bits.
DG_INLINE Angle<float> angle(Words n) {
  Angle<float> a;
  for (int i = 0; i < kVectors; ++i) {
    const Int<float> rest = bit_cast<Int<float>>((n.v[i] << 2) | 2);
    a.turn.v[i] = __builtin_convertvector(rest, Vec<float>) * 0x1p-32f;
    a.swapped[i] = bit_cast<Int<float>>(n.v[i]) < 0;
    a.negative[i] = bit_cast<Int<float>>((n.v[i] << 1) & (1u << 31));
  }
  return a;
}

// u = m / 2^n with m in [sqrt(1/2), sqrt(2)), for positive u that are not denormal and at most 1.
DG_INLINE void split(Row<double> u, Row<double>& m, Row<double>& n) {
  constexpr int64_t kOne = 0x3ff0000000000000, kRoot = 0x3fe6a09e667f3bcd, kMantissa = 0x000fffffffffffff;
  for (int i = 0; i < kVectors; ++i) {
    const Wide shifted = bit_cast<Wide>(u.v[i]) + static_cast<uint64_t>(kOne - kRoot);
    // 2^52 plus the exponent, as an integer and as a number.
    const Wide exponent = (shifted >> 52) | static_cast<uint64_t>(int64_t{1075} << 52);
    n.v[i] = (0x1p52 + 1023) - bit_cast<Vec<double>>(exponent);
    m.v[i] = bit_cast<Vec<double>>((shifted & static_cast<uint64_t>(kMantissa)) + static_cast<uint64_t>(kRoot));
  }
}

DG_INLINE void split(Row<float> u, Row<float>& m, Row<float>& n) {
  constexpr uint32_t kOne = 0x3f800000, kRoot = 0x3f3504f3, kMantissa = 0x007fffff;
  for (int i = 0; i < kVectors; ++i) {
    const Narrow shifted = bit_cast<Narrow>(u.v[i]) + (kOne - kRoot);
    n.v[i] = __builtin_convertvector(127 - bit_cast<Int<float>>(shifted >> 23), Vec<float>);
    m.v[i] = bit_cast<Vec<float>>((shifted & kMantissa) + kRoot);
  }
}

template <class T>
struct Coefficients;

// Weighted least squares at Chebyshev nodes, the leading coefficients rounded first.  With s = (m - 1) / (m + 1) and
// z = s^2, -2 ln m = -4 s + s z log(z); with z = turn^2, the sine of a turn is turn * sine(z), and its cosine
// 1 + z cosine(z).  2 ln 2 comes in two parts, of which the first is short enough that its multiples are exact.
template <>
struct Coefficients<double> {
  static constexpr double log[] = {-0x1.5555555555594p+0, -0x1.999999997f72dp-1, -0x1.249249423c734p-1,
                                   -0x1.c71c51d50fa2ap-2, -0x1.7466486178ecdp-2, -0x1.39a0ddfa994c2p-2,
                                   -0x1.2f0d5e2c92795p-2};
  static constexpr double sine[] = {0x1.921fb54442d18p+0, -0x1.4abbce625be09p-1,  0x1.466bc67754fe4p-4,
                                    -0x1.32d2ccdfe644ap-8, 0x1.50782d5b6b2d1p-13, -0x1.e2fe733e88a92p-19,
                                    0x1.e356905f06f74p-25};
  static constexpr double cosine[] = {-0x1.3bd3cc9be45dep+0,  0x1.03c1f081b5a65p-2,  -0x1.55d3c7e3c2d7bp-6,
                                      0x1.e1f5067b057f8p-11,  -0x1.a6d1e6b52f412p-16, 0x1.f9c840cb57470p-22,
                                      -0x1.b14b5b3de0d19p-28};
  static constexpr double log_4_high = 0x1.62e42fefa4000p+0, log_4_low = -0x1.8432a1b0e2634p-42;
};

template <>
struct Coefficients<float> {
  static constexpr float log[] = {-0x1.55557ap+0f, -0x1.995ed8p-1f, -0x1.31e03cp-1f};
  static constexpr float sine[] = {0x1.921fb6p+0f, -0x1.4abbeep-1f, 0x1.466be6p-4f, -0x1.2f7c3ep-8f};
  static constexpr float cosine[] = {-0x1.3bd3ccp+0f, 0x1.03c1b6p-2f, -0x1.55b684p-6f, 0x1.d61e28p-11f};
  static constexpr float log_4_high = 0x1.62e400p+0f, log_4_low = 0x1.7f7d1cp-19f;
};

template <class T>
struct Pair {
  Row<T> a, b;
};

// Two independent normals: sqrt(-2 ln u) times the cosine and the sine.
template <class T>
DG_INLINE Pair<T> pair(Row<T> u, Angle<T> angle) {
  using C = Coefficients<T>;
  Row<T> m, n;
  split(u, m, n);
  const Row<T> s = (m - T(1)) / (m + T(1)), z = s * s;
  const Row<T> of_m = s * T(-4) + s * (z * polynomial(C::log, z));
  const Row<T> radius = sqrt(n * C::log_4_high + (n * C::log_4_low + of_m));

  const Row<T> t = angle.turn, y = t * t;
  const Row<T> sine = t * polynomial(C::sine, y);
  Row<T> cosine = y * polynomial(C::cosine, y) + T(1);
  Pair<T> p;
  for (int i = 0; i < kVectors; ++i) {
    const Vec<T> c = bit_cast<Vec<T>>(bit_cast<Int<T>>(cosine.v[i]) | angle.negative[i]);
    p.a.v[i] = select<T>(angle.swapped[i], sine.v[i], c);
    p.b.v[i] = select<T>(angle.swapped[i], c, sine.v[i]);
  }
  p.a = radius * p.a;
  p.b = radius * p.b;
  return p;
}

}  // namespace
