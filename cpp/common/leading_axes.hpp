// The leading axes of an array of matrices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace depthgauge {

// Members lie `strides` bytes apart along these axes, and are numbered in C order.
struct LeadingAxes {
  std::vector<int64_t> shape, strides;

  int64_t count() const {
    int64_t members = 1;
    for (const int64_t size : shape) members *= size;
    return members;
  }
  // Bytes from the first member to another.
  int64_t offset(int64_t index) const {
    int64_t bytes = 0;
    for (size_t axis = shape.size(); axis-- > 0; index /= shape[axis]) bytes += index % shape[axis] * strides[axis];
    return bytes;
  }
};

}  // namespace depthgauge
