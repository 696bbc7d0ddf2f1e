// Several SIMD vectors that go through the same operations together.
//
// Include this in per-instruction-set units only.
#pragma once

#include "common/simd.hpp"

namespace {

template <class T>
struct PackTypes;
template <>
struct PackTypes<double> {
  using Real = double;
  typedef uint64_t Unsigned __attribute__((vector_size(kVectorBytes)));
  static constexpr int64_t kSign = INT64_MIN;
};
template <>
struct PackTypes<float> {
  using Real = float;
  typedef uint32_t Unsigned __attribute__((vector_size(kVectorBytes)));
  static constexpr int32_t kSign = INT32_MIN;
};

template <class T>
using Unsigned = typename PackTypes<T>::Unsigned;
template <class T>
using Real = typename PackTypes<T>::Real;  // T, but not deduced: any number converts to it

// Several vectors that advance in step.  One evaluation is a long chain of dependent operations; two or more
// interleaved hide much of its latency.  Scalars stand for constant vectors.
template <class T, int N>
struct Pack {
  Vec<T> v[N];
};
template <class T, int N>
struct IntPack {
  Int<T> v[N];
};
template <class T, int N>
struct UnsignedPack {
  Unsigned<T> v[N];
};
template <int N, class T>
DG_INLINE Pack<T, N> fill(T s) {
  Pack<T, N> r;
  for (int i = 0; i < N; ++i) r.v[i] = splat(s);
  return r;
}

template <class T>
DG_INLINE Vec<T> pick(Real<T> s, int) {
  return splat(s);
}
template <class T, int N>
DG_INLINE Vec<T> pick(Pack<T, N> p, int i) {
  return p.v[i];
}

#define DG_PACK_OPERATOR(op)                                      \
  template <class T, int N, class B>                              \
  DG_INLINE Pack<T, N> operator op(Pack<T, N> a, B b) {           \
    for (int i = 0; i < N; ++i) a.v[i] = a.v[i] op pick<T>(b, i); \
    return a;                                                     \
  }                                                               \
  template <class T, int N>                                       \
  DG_INLINE Pack<T, N> operator op(Real<T> a, Pack<T, N> b) {     \
    for (int i = 0; i < N; ++i) b.v[i] = splat(a) op b.v[i];      \
    return b;                                                     \
  }
DG_PACK_OPERATOR(+)
DG_PACK_OPERATOR(-)
DG_PACK_OPERATOR(*)
DG_PACK_OPERATOR(/)
#undef DG_PACK_OPERATOR

template <class T, int N>
DG_INLINE Pack<T, N> operator-(Pack<T, N> a) {
  for (int i = 0; i < N; ++i) a.v[i] = -a.v[i];
  return a;
}

template <class T, int N, class B, class C>
DG_INLINE Pack<T, N> fma(Pack<T, N> a, B b, C c) {
  for (int i = 0; i < N; ++i) a.v[i] = fma(a.v[i], pick<T>(b, i), pick<T>(c, i));
  return a;
}

template <class T, int N>
DG_INLINE IntPack<T, N> operator>(Pack<T, N> a, Real<T> b) {
  IntPack<T, N> r;
  for (int i = 0; i < N; ++i) r.v[i] = a.v[i] > splat(b);
  return r;
}

template <class T, int N>
DG_INLINE IntPack<T, N> operator<(Pack<T, N> a, Real<T> b) {
  IntPack<T, N> r;
  for (int i = 0; i < N; ++i) r.v[i] = a.v[i] < splat(b);
  return r;
}

template <class T, int N, class B>
DG_INLINE Pack<T, N> select(IntPack<T, N> mask, Pack<T, N> a, B b) {
  for (int i = 0; i < N; ++i) a.v[i] = select<T>(mask.v[i], a.v[i], pick<T>(b, i));
  return a;
}

// The larger and the smaller of a constant and `b`; NaN where `b` is.
template <class T, int N>
DG_INLINE Pack<T, N> at_least(Real<T> a, Pack<T, N> b) {
  for (int i = 0; i < N; ++i) b.v[i] = max_or_second(splat(a), b.v[i]);
  return b;
}

template <class T, int N>
DG_INLINE Pack<T, N> at_most(Real<T> a, Pack<T, N> b) {
  for (int i = 0; i < N; ++i) b.v[i] = min_or_second(splat(a), b.v[i]);
  return b;
}

template <class T, int N>
DG_INLINE Pack<T, N> abs(Pack<T, N> a) {
  for (int i = 0; i < N; ++i) a.v[i] = abs(a.v[i]);
  return a;
}

// -|a|.
template <class T, int N>
DG_INLINE Pack<T, N> minus_abs(Pack<T, N> a) {
  const Int<T> sign = splat_int<T>(PackTypes<T>::kSign);
  for (int i = 0; i < N; ++i) a.v[i] = bit_cast<Vec<T>>(bit_cast<Int<T>>(a.v[i]) | sign);
  return a;
}

// |magnitude| with the sign of `sign`.
template <class T, int N>
DG_INLINE Pack<T, N> copy_sign(Pack<T, N> magnitude, Pack<T, N> sign) {
  const Int<T> mask = splat_int<T>(PackTypes<T>::kSign);
  for (int i = 0; i < N; ++i)
    magnitude.v[i] =
        bit_cast<Vec<T>>((bit_cast<Int<T>>(magnitude.v[i]) & ~mask) | (bit_cast<Int<T>>(sign.v[i]) & mask));
  return magnitude;
}

// 1 where `mask` is set, else 0.
template <class T, int N>
DG_INLINE Pack<T, N> one_where(IntPack<T, N> mask) {
  Pack<T, N> r;
  for (int i = 0; i < N; ++i) r.v[i] = bit_cast<Vec<T>>(mask.v[i] & bit_cast<Int<T>>(splat(T(1))));
  return r;
}

template <class T, int N>
DG_INLINE Pack<T, N> sqrt(Pack<T, N> a) {
  for (int i = 0; i < N; ++i) a.v[i] = sqrt(a.v[i]);
  return a;
}

}  // namespace
