// Standard normals from counters: any matrix of any layer of any seed, made anywhere, in any order.
#pragma once

#include <cstdint>

#include "common/resources.hpp"
#include "random/normal_kernels.hpp"

namespace depthgauge::random {

// Fills [seed][layer][number] with normals times `deviation`, `layers` layers from `first_layer` on.
template <class T>
struct Request {
  const uint64_t* seeds;
  int64_t seed_count;
  int64_t first_layer, layers;
  int64_t count;  // numbers a matrix
  uint32_t matrix;
  T deviation;
  T* out;
};

template <class T>
void normals(const Request<T>& request, const Resources& resources);

template <class T>
Kernels<T> kernels(Target target);

}  // namespace depthgauge::random
