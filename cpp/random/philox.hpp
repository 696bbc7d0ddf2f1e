// Philox4x32-10 (Salmon, Moraes, Dror & Shaw 2011), one counter a lane of 64 bits.
#pragma once

#include "common/pack.hpp"
#include "random/normal_kernels.hpp"

namespace {

// Words of 32 bits sit in the low halves of lanes of 64; the high halves hold anything.
using Lanes64 = Unsigned<double>;
using Lanes32 = Unsigned<float>;
constexpr int kLanes64 = kVectorBytes / 8;

DG_INLINE Lanes64 splat_word(uint64_t s) { return s - Lanes64{}; }

// The products of the low halves.
DG_INLINE Lanes64 multiply_low(Lanes64 a, Lanes64 b) {
#if defined(__AVX512F__)
  return bit_cast<Lanes64>(_mm512_maskz_mul_epu32(0xff, bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return bit_cast<Lanes64>(_mm256_mul_epu32(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return bit_cast<Lanes64>(_mm_mul_epu32(bit_cast<__m128i>(a), bit_cast<__m128i>(b)));
#else
  return bit_cast<Lanes64>(vmull_u32(vmovn_u64(bit_cast<uint64x2_t>(a)), vmovn_u64(bit_cast<uint64x2_t>(b))));
#endif
}

// The low halves of `low` with the high halves of `high`.
DG_INLINE Lanes64 halves(Lanes64 low, Lanes64 high) {
#if defined(__AVX512F__)
  return bit_cast<Lanes64>(_mm512_mask_blend_epi32(0xaaaa, bit_cast<__m512i>(low), bit_cast<__m512i>(high)));
#elif defined(__AVX2__)
  return bit_cast<Lanes64>(_mm256_blend_epi32(bit_cast<__m256i>(low), bit_cast<__m256i>(high), 0xaa));
#else
  return (low & splat_word(0xffffffff)) | (high & splat_word(0xffffffff00000000));
#endif
}

constexpr int kRounds = 10;

struct Keys {
  Lanes64 key[kRounds][2];
  DG_INLINE explicit Keys(uint64_t seed) {
    uint32_t low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < kRounds; ++round, low += 0x9e3779b9, high += 0xbb67ae85) {
      key[round][0] = splat_word(low);
      key[round][1] = splat_word(high);
    }
  }
};

// Counters to random words, N vectors at once.
template <int N>
DG_INLINE void philox(Lanes64 (&c)[4][N], const Keys& keys) {
  const Lanes64 m0 = splat_word(0xd2511f53), m1 = splat_word(0xcd9e8d57);
#pragma GCC unroll 10
  for (int round = 0; round < kRounds; ++round)
    for (int i = 0; i < N; ++i) {
      const Lanes64 p0 = multiply_low(c[0][i], m0), p1 = multiply_low(c[2][i], m1);
      c[0][i] = (p1 >> 32) ^ c[1][i] ^ keys.key[round][0];
      c[1][i] = p1;
      c[2][i] = (p0 >> 32) ^ c[3][i] ^ keys.key[round][1];
      c[3][i] = p0;
    }
}

}  // namespace
