// A group turned from [feature][example] into panels of [example][feature].
#pragma once

#include "common/simd.hpp"

namespace {

#if defined(__AVX2__) && !defined(__AVX512F__)
DG_INLINE void transpose_square(const double* in, double* out) {
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 8; j += 4) {
      const double* a = in + i * 8 + j;
      const __m256d r0 = load(a), r1 = load(a + 8), r2 = load(a + 16), r3 = load(a + 24);
      const __m256d p = _mm256_unpacklo_pd(r0, r1), q = _mm256_unpackhi_pd(r0, r1);
      const __m256d s = _mm256_unpacklo_pd(r2, r3), t = _mm256_unpackhi_pd(r2, r3);
      double* b = out + j * 8 + i;
      store(b, _mm256_permute2f128_pd(p, s, 0x20));
      store(b + 8, _mm256_permute2f128_pd(q, t, 0x20));
      store(b + 16, _mm256_permute2f128_pd(p, s, 0x31));
      store(b + 24, _mm256_permute2f128_pd(q, t, 0x31));
    }
}

DG_INLINE void transpose_square(const float* in, float* out) {
  for (int i = 0; i < 16; i += 8)
    for (int j = 0; j < 16; j += 8) {
      const float* a = in + i * 16 + j;
      __m256 r[8], s[8];
      for (int k = 0; k < 8; ++k) r[k] = load(a + 16 * k);
      for (int k = 0; k < 8; k += 2) {
        s[k] = _mm256_unpacklo_ps(r[k], r[k + 1]);
        s[k + 1] = _mm256_unpackhi_ps(r[k], r[k + 1]);
      }
      for (int k = 0; k < 8; k += 4) {
        r[k] = _mm256_shuffle_ps(s[k], s[k + 2], 0x44);
        r[k + 1] = _mm256_shuffle_ps(s[k], s[k + 2], 0xee);
        r[k + 2] = _mm256_shuffle_ps(s[k + 1], s[k + 3], 0x44);
        r[k + 3] = _mm256_shuffle_ps(s[k + 1], s[k + 3], 0xee);
      }
      float* b = out + j * 16 + i;
      for (int k = 0; k < 4; ++k) {
        store(b + 16 * k, _mm256_permute2f128_ps(r[k], r[k + 4], 0x20));
        store(b + 16 * (k + 4), _mm256_permute2f128_ps(r[k], r[k + 4], 0x31));
      }
    }
}
#else
template <class T>
DG_INLINE void transpose_square(const T* in, T* out) {
  for (int i = 0; i < kLanes<T>; ++i)
    for (int j = 0; j < kLanes<T>; ++j) out[j * kLanes<T> + i] = in[i * kLanes<T> + j];
}
#endif

// Features beyond n are zero.
template <class T>
void transpose_group(const T* group, int64_t n, T* panel, int64_t panel_stride) {
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>, panel += panel_stride) transpose_square(group + j * kLanes<T>, panel);
  if (j == n) return;
  alignas(64) T rest[kLanes<T> * kLanes<T>];
  for (int64_t i = 0; i < kLanes<T>; ++i)
    store_row(rest + i * kLanes<T>, j + i < n ? load_row(group + (j + i) * kLanes<T>) : Row<T>{});
  transpose_square(rest, panel);
}

}  // namespace
