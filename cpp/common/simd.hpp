// The vector type of one instruction set, and the group of examples that the kernels work on.
//
// Include this only in a per-instruction-set unit.  Everything sits in an anonymous namespace and is always
// inlined: a function with external linkage would be emitted once for every instruction set, and the linker
// would keep any one of them, AVX-512 code in the baseline included.  For the same reason these units use no
// function or container of the standard library.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(DG_OUTLINE)
// Sanitizer builds, which would take many minutes with everything inlined.
#define DG_INLINE inline
#define DG_INLINE_LAMBDA
#else
#define DG_INLINE inline __attribute__((always_inline))
// For lambdas: their captures stay in registers only where they are inlined.
#define DG_INLINE_LAMBDA __attribute__((always_inline))
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

// States are stored [group][feature][one cache line of examples] on every instruction set, so that a tape does
// not depend on the machine that made it.
constexpr int kGroupBytes = 64;
constexpr int kVectors = kGroupBytes / kVectorBytes;

template <class T>
constexpr int kLanes = kGroupBytes / static_cast<int>(sizeof(T));
template <class T>
constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));

template <class T>
struct Types;
template <>
struct Types<double> {
  typedef double Vec __attribute__((vector_size(kVectorBytes)));
  typedef decltype(Vec{} == Vec{}) Int;  // of long or long long, as the compiler has it
  using Scalar = int64_t;
};
template <>
struct Types<float> {
  typedef float Vec __attribute__((vector_size(kVectorBytes)));
  typedef decltype(Vec{} == Vec{}) Int;
  typedef float Half __attribute__((vector_size(kVectorBytes / 2)));
  using Scalar = int32_t;
};

// One SIMD vector, and the integer vector of its comparisons (all ones where true).
template <class T>
using Vec = typename Types<T>::Vec;
template <class T>
using Int = typename Types<T>::Int;
using Half = typename Types<float>::Half;

template <class T>
DG_INLINE Vec<T> load(const T* p) {
  Vec<T> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <class T>
DG_INLINE void store(T* p, Vec<T> v) {
  __builtin_memcpy(p, &v, sizeof v);
}

DG_INLINE Vec<double> splat(double s) {
#if defined(__AVX512F__)
  return _mm512_set1_pd(s);
#elif defined(__AVX2__)
  return _mm256_set1_pd(s);
#else
  return Vec<double>{s, s};
#endif
}

DG_INLINE Vec<float> splat(float s) {
#if defined(__AVX512F__)
  return _mm512_set1_ps(s);
#elif defined(__AVX2__)
  return _mm256_set1_ps(s);
#else
  return Vec<float>{s, s, s, s};
#endif
}

template <class T>
DG_INLINE Int<T> splat_int(typename Types<T>::Scalar s) {
  return s - Int<T>{};
}

// a * b + c, rounded once where the instruction set can.  Contraction is off in the build, so that this is the
// only place where products and sums fuse.
DG_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f64(c, a, b);
#else
  return a * b + c;
#endif
}

DG_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

// Where `mask` is set `a`, else `b`.
template <class T>
DG_INLINE Vec<T> select(Int<T> mask, Vec<T> a, Vec<T> b) {
  return mask ? a : b;
}

// The larger of two; `b` when either is NaN.
DG_INLINE Vec<double> max_or_second(Vec<double> a, Vec<double> b) {
#if defined(__AVX512F__)
  return _mm512_max_pd(a, b);
#elif defined(__AVX2__)
  return _mm256_max_pd(a, b);
#elif defined(__SSE2__)
  return _mm_max_pd(a, b);
#else
  return a > b ? a : b;
#endif
}

DG_INLINE Vec<float> max_or_second(Vec<float> a, Vec<float> b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
  return _mm_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

// The smaller of two; `b` when either is NaN.
DG_INLINE Vec<double> min_or_second(Vec<double> a, Vec<double> b) {
#if defined(__AVX512F__)
  return _mm512_maskz_min_pd(0xff, a, b);  // unlike the plain form, no warning from GCC 12
#elif defined(__AVX2__)
  return _mm256_min_pd(a, b);
#elif defined(__SSE2__)
  return _mm_min_pd(a, b);
#else
  return a < b ? a : b;
#endif
}

DG_INLINE Vec<float> min_or_second(Vec<float> a, Vec<float> b) {
#if defined(__AVX512F__)
  return _mm512_maskz_min_ps(0xffff, a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#elif defined(__SSE2__)
  return _mm_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

DG_INLINE Vec<float> sqrt(Vec<float> v) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(v);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(v);
#elif defined(__SSE2__)
  return _mm_sqrt_ps(v);
#else
  return vsqrtq_f32(v);
#endif
}

DG_INLINE Vec<double> sqrt(Vec<double> v) {
#if defined(__AVX512F__)
  return _mm512_sqrt_pd(v);
#elif defined(__AVX2__)
  return _mm256_sqrt_pd(v);
#elif defined(__SSE2__)
  return _mm_sqrt_pd(v);
#else
  return vsqrtq_f64(v);
#endif
}

template <class To, class From>
DG_INLINE To bit_cast(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To r;
  __builtin_memcpy(&r, &v, sizeof r);
  return r;
}

DG_INLINE Vec<double> abs(Vec<double> v) {
  return bit_cast<Vec<double>>(bit_cast<Int<double>>(v) & splat_int<double>(INT64_MAX));
}

DG_INLINE Vec<float> abs(Vec<float> v) {
  return bit_cast<Vec<float>>(bit_cast<Int<float>>(v) & splat_int<float>(INT32_MAX));
}

// The magnitude of `a` with the sign of `b`.
DG_INLINE Vec<double> copy_sign(Vec<double> a, Vec<double> b) {
  const Int<double> magnitude = splat_int<double>(INT64_MAX);
  return bit_cast<Vec<double>>((bit_cast<Int<double>>(a) & magnitude) | (bit_cast<Int<double>>(b) & ~magnitude));
}

DG_INLINE Vec<float> copy_sign(Vec<float> a, Vec<float> b) {
  const Int<float> magnitude = splat_int<float>(INT32_MAX);
  return bit_cast<Vec<float>>((bit_cast<Int<float>>(a) & magnitude) | (bit_cast<Int<float>>(b) & ~magnitude));
}

// The units of one instruction set have no standard library.
template <class P>
DG_INLINE void swap(P& a, P& b) {
  const P old = a;
  a = b;
  b = old;
}

// Powers of two and exponents of scalars, for normal numbers: x is in [1, 2) times 2^exponent_of(x).
template <class T>
DG_INLINE typename Types<T>::Scalar exponent_of(T x);
template <>
DG_INLINE int64_t exponent_of(double x) {
  return ((bit_cast<int64_t>(x) >> 52) & 2047) - 1023;
}
template <>
DG_INLINE int32_t exponent_of(float x) {
  return ((bit_cast<int32_t>(x) >> 23) & 255) - 127;
}
template <class T>
DG_INLINE T power_of_two(typename Types<T>::Scalar exponent);
template <>
DG_INLINE double power_of_two(int64_t exponent) {
  return bit_cast<double>((exponent + 1023) << 52);
}
template <>
DG_INLINE float power_of_two(int32_t exponent) {
  return bit_cast<float>((exponent + 127) << 23);
}

// One bit a lane, lane 0 lowest.
DG_INLINE unsigned bits(Int<double> mask) {
#if defined(__AVX512F__)
  return _mm512_movepi64_mask(bit_cast<__m512i>(mask));
#elif defined(__AVX2__)
  return static_cast<unsigned>(_mm256_movemask_pd(bit_cast<__m256d>(mask)));
#elif defined(__SSE2__)
  return static_cast<unsigned>(_mm_movemask_pd(bit_cast<__m128d>(mask)));
#else
  unsigned r = 0;
  for (int i = 0; i < kWidth<double>; ++i) r |= static_cast<unsigned>(mask[i] & 1) << i;
  return r;
#endif
}

DG_INLINE unsigned bits(Int<float> mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(bit_cast<__m512i>(mask));
#elif defined(__AVX2__)
  return static_cast<unsigned>(_mm256_movemask_ps(bit_cast<__m256>(mask)));
#elif defined(__SSE2__)
  return static_cast<unsigned>(_mm_movemask_ps(bit_cast<__m128>(mask)));
#else
  unsigned r = 0;
  for (int i = 0; i < kWidth<float>; ++i) r |= static_cast<unsigned>(mask[i] & 1) << i;
  return r;
#endif
}

// The inverse of bits(): lane i is all ones where bit i is set.
template <class T>
DG_INLINE Int<T> from_bits(unsigned b) {
  using S = typename Types<T>::Scalar;
  Int<T> lane;
  for (int i = 0; i < kWidth<T>; ++i) lane[i] = S{1} << i;
  return (splat_int<T>(static_cast<S>(b)) & lane) != Int<T>{};
}

#if defined(__AVX2__) && !defined(__AVX512F__)
DG_INLINE Vec<double> widen_low(Vec<float> v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
DG_INLINE Vec<double> widen_high(Vec<float> v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }
#else
DG_INLINE Vec<double> widen_low(Vec<float> v) {
  Half h;
  __builtin_memcpy(&h, &v, sizeof h);
  return __builtin_convertvector(h, Vec<double>);
}

DG_INLINE Vec<double> widen_high(Vec<float> v) {
  Half h;
  __builtin_memcpy(&h, reinterpret_cast<const char*>(&v) + sizeof h, sizeof h);
  return __builtin_convertvector(h, Vec<double>);
}
#endif

// One feature of a group of examples: a cache line of lanes, as kVectors vectors.
template <class T>
struct Row {
  Vec<T> v[kVectors];
};

template <class T>
DG_INLINE Row<T> load_row(const T* p) {
  Row<T> r;
  for (int i = 0; i < kVectors; ++i) r.v[i] = load(p + i * kWidth<T>);
  return r;
}

template <class T>
DG_INLINE void store_row(T* p, Row<T> r) {
  for (int i = 0; i < kVectors; ++i) store(p + i * kWidth<T>, r.v[i]);
}

template <class T>
DG_INLINE Row<T> splat_row(T s) {
  Row<T> r;
  for (int i = 0; i < kVectors; ++i) r.v[i] = splat(s);
  return r;
}

template <class T>
DG_INLINE Row<T> operator+(Row<T> a, Row<T> b) {
  for (int i = 0; i < kVectors; ++i) a.v[i] += b.v[i];
  return a;
}

template <class T>
DG_INLINE Row<T> operator-(Row<T> a, Row<T> b) {
  for (int i = 0; i < kVectors; ++i) a.v[i] -= b.v[i];
  return a;
}

template <class T>
DG_INLINE Row<T> operator*(Row<T> a, Row<T> b) {
  for (int i = 0; i < kVectors; ++i) a.v[i] *= b.v[i];
  return a;
}

template <class T>
DG_INLINE Row<T> fma(Row<T> a, Row<T> b, Row<T> c) {
  for (int i = 0; i < kVectors; ++i) c.v[i] = fma(a.v[i], b.v[i], c.v[i]);
  return c;
}

}  // namespace
