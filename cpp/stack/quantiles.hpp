// Quantiles of what groups of examples hold.
#pragma once

#include <cstdint>
#include <vector>

namespace depthgauge::stack {

// Quantiles of the magnitudes in adjacent groups of `features` for that many examples, linear between order statistics;
// NaN if any value is NaN, or there are none.
template <class T>
void magnitude_quantiles(const T* groups, int64_t features, int64_t examples, const std::vector<double>& levels,
                         double* out);

}  // namespace depthgauge::stack
