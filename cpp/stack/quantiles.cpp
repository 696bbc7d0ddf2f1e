#include "stack/quantiles.hpp"

#include <algorithm>
#include <cmath>

#include "stack/kernels.hpp"

namespace depthgauge::stack {
namespace {

template <class T>
std::vector<double> magnitudes(const T* groups, int64_t features, int64_t examples) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(examples * features));
  for (int64_t first = 0; first < examples; first += kGroup<T>, groups += features * kGroup<T>)
    for (int64_t k = 0; k < features; ++k)
      for (int64_t lane = 0; lane < std::min<int64_t>(kGroup<T>, examples - first); ++lane)
        values.push_back(std::abs(static_cast<double>(groups[k * kGroup<T> + lane])));
  return values;
}

double quantile(std::vector<double>& values, double level) {
  const double position = level * static_cast<double>(values.size() - 1);
  const auto lower = static_cast<int64_t>(position);
  const double weight = position - static_cast<double>(lower);
  const auto middle = values.begin() + lower;
  std::nth_element(values.begin(), middle, values.end());
  if (weight == 0) return *middle;
  const double above = *std::min_element(middle + 1, values.end());
  // Between equal neighbors nothing is added: infinity minus infinity would be NaN.
  return above == *middle ? *middle : *middle + (above - *middle) * weight;
}

}  // namespace

template <class T>
void magnitude_quantiles(const T* groups, int64_t features, int64_t examples, const std::vector<double>& levels,
                         double* out) {
  std::vector<double> values = magnitudes(groups, features, examples);
  const bool undefined =
      values.empty() || std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
  for (size_t q = 0; q < levels.size(); ++q) out[q] = undefined ? std::nan("") : quantile(values, levels[q]);
}

template void magnitude_quantiles(const float*, int64_t, int64_t, const std::vector<double>&, double*);
template void magnitude_quantiles(const double*, int64_t, int64_t, const std::vector<double>&, double*);

}  // namespace depthgauge::stack
