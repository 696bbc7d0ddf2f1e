// One instruction set and precision: DG_TARGET and DG_REAL are set by the build.
#include "random/normal_kernels.hpp"

#include "random/box_muller.hpp"
#include "random/philox.hpp"

namespace {

using depthgauge::random::kBlocksPerLine;
using depthgauge::random::kLine;
using depthgauge::random::Sequence;

constexpr int kLines = kPack / kVectors;

// Lanes first, first + step, ...
DG_INLINE Lanes64 counting(uint32_t first, int step) {
  Lanes64 w;
  for (int i = 0; i < kLanes64; ++i) w[i] = first + static_cast<uint32_t>(i * step);
  return w;
}

// The words of Philox of N vectors of blocks.
template <int N>
DG_INLINE void words(const Keys& keys, const Sequence& sequence, Lanes64 high, const Lanes64 (&low)[N],
                     Lanes64 (&c)[4][N]) {
  for (int i = 0; i < N; ++i) {
    c[0][i] = low[i];
    c[1][i] = high;
    c[2][i] = splat_word(sequence.layer);
    c[3][i] = splat_word(sequence.matrix);
  }
  philox(c, keys);
}

// Number `which` of each block of the lines.
template <class T>
DG_INLINE void store_numbers(Reals<T> numbers, int which, T* out) {
  for (int i = 0; i < kPack; ++i)
    store(out + i / kVectors * kLine<T> + which * kLanes<T> + i % kVectors * kWidth<T>, numbers.v[i]);
}

// Some lines of numbers, each already times `deviation`, from the block at `first` on.
[[maybe_unused]] DG_INLINE void lines(const Keys& keys, const Sequence& sequence, Lanes64 high, uint32_t first,
                                      double deviation, double* out) {
  Lanes64 low[kPack], c[4][kPack];
  for (int i = 0; i < kPack; ++i) low[i] = splat_word(first) + counting(static_cast<uint32_t>(i * kLanes64), 1);
  words(keys, sequence, high, low, c);
  const Pair<double> p = pair(radius_uniform(c[0], c[1]), angle(c[2], c[3]));
  store_numbers(p.a * deviation, 0, out);
  store_numbers(p.b * deviation, 1, out);
}

[[maybe_unused]] DG_INLINE void lines(const Keys& keys, const Sequence& sequence, Lanes64 high, uint32_t first,
                                      float deviation, float* out) {
  Words c[4];
  for (int i = 0; i < kPack; i += 2) {
    Lanes64 low[4], half[4][4];
    // Even blocks and odd ones apart, to be interleaved into vectors of float.
    for (int k = 0; k < 4; ++k)
      low[k] = splat_word(first) + counting(static_cast<uint32_t>((i + k / 2) * 2 * kLanes64 + k % 2), 2);
    words(keys, sequence, high, low, half);
    for (int word = 0; word < 4; ++word)
      for (int k = 0; k < 2; ++k) c[word].v[i + k] = interleave(half[word][2 * k], half[word][2 * k + 1]);
  }
  for (int k = 0; k < 2; ++k) {
    const Pair<float> p = pair(radius_uniform(c[2 * k]), angle(c[2 * k + 1]));
    store_numbers(p.a * deviation, 2 * k, out);
    store_numbers(p.b * deviation, 2 * k + 1, out);
  }
}

template <class T>
void normals(const Sequence& sequence, int64_t line, int64_t count, T deviation, T* out) {
  constexpr int64_t kStep = kLines * kLine<T>;
  const Keys keys(sequence.seed);
  uint64_t block = static_cast<uint64_t>(line * kBlocksPerLine<T>);
  while (count > 0) {
    // The high half of the number of a block stays the same for long, and with it much of the first rounds.
    const Lanes64 high = splat_word(block >> 32);
    do {
      if (count < kStep) {
        T last[kStep];
        lines(keys, sequence, high, static_cast<uint32_t>(block), deviation, last);
        __builtin_memcpy(out, last, static_cast<size_t>(count) * sizeof(T));
        return;
      }
      lines(keys, sequence, high, static_cast<uint32_t>(block), deviation, out);
      count -= kStep;
      out += kStep;
      block += kLines * kBlocksPerLine<T>;
    } while (count > 0 && static_cast<uint32_t>(block));
  }
}

}  // namespace

namespace depthgauge::random::DG_TARGET {

void get_kernels(Kernels<DG_REAL>* out) { out->normals = normals<DG_REAL>; }

}  // namespace depthgauge::random::DG_TARGET
