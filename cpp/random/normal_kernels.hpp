// The kernels of random normals: one table for each instruction set.
#pragma once

#include <cstdint>

#include "common/kernel_tables.hpp"

namespace depthgauge::random {

// Which numbers: Philox's key, and the words of its counter that stay the same over a sequence.
struct Sequence {
  uint64_t seed;
  uint32_t layer, matrix;
};

// Numbers come in lines of one block of Philox a lane of a cache line.
template <class T>
constexpr int64_t kBlocksPerLine = 64 / static_cast<int64_t>(sizeof(T));
template <class T>
constexpr int64_t kLine = kBlocksPerLine<T> * 16 / static_cast<int64_t>(sizeof(T));

template <class T>
struct Kernels {
  // The numbers of a sequence from line `line`, a multiple of 4, on, times `deviation`.
  void (*normals)(const Sequence& sequence, int64_t line, int64_t count, T deviation, T* out);
};

DG_DECLARE_TABLES(Kernels)

}  // namespace depthgauge::random
