// The largest entry of a matrix, and whether all entries are finite.
#pragma once

#include "common/simd.hpp"
#include "spectra/singular_kernels.hpp"

namespace {

using depthgauge::spectra::Matrix;
using depthgauge::spectra::Scan;

template <class T>
Scan scan(const Matrix& a) {
  // Magnitudes as integers order as the numbers do, infinity and NaN above all others.
  using S = typename Types<T>::Scalar;
  constexpr int W = kWidth<T>, kMantissa = sizeof(T) == 8 ? 52 : 23, kBias = sizeof(T) == 8 ? 1023 : 127;
  constexpr S kInfinity = static_cast<S>(2 * kBias + 1) << kMantissa, kMagnitude = kInfinity | (kInfinity - 1);
  // The axis with the smaller steps within, for the order does not matter.
  const auto size = [](int64_t stride) { return stride < 0 ? -stride : stride; };
  const bool across = size(a.row_stride) > size(a.column_stride);
  int64_t outer = across ? a.rows : a.columns, inner = across ? a.columns : a.rows;
  const int64_t outer_stride = across ? a.row_stride : a.column_stride;
  const int64_t inner_stride = across ? a.column_stride : a.row_stride;
  if (outer_stride == inner * inner_stride) {
    inner *= outer;
    outer = 1;
  }
  constexpr int kChains = 4;
  Int<T> tops[kChains] = {};
  S top = 0;
  for (int64_t i = 0; i < outer; ++i) {
    const char* p = a.data + i * outer_stride;
    int64_t j = 0;
    if (inner_stride == static_cast<int64_t>(sizeof(T)))
      for (; j + kChains * W <= inner; j += kChains * W)
        for (int s = 0; s < kChains; ++s) {
          Int<T> x;
          __builtin_memcpy(&x, p + j * inner_stride + s * kVectorBytes, sizeof x);
          x &= splat_int<T>(kMagnitude);
          tops[s] = x > tops[s] ? x : tops[s];
        }
    for (; j < inner; ++j) {
      S x;
      __builtin_memcpy(&x, p + j * inner_stride, sizeof x);
      x &= kMagnitude;
      top = x > top ? x : top;
    }
  }
  for (const Int<T>& t : tops)
    for (int l = 0; l < W; ++l) top = t[l] > top ? static_cast<S>(t[l]) : top;
  if (top >= kInfinity) return {0, false};
  if (top == 0) return {0, true};
  S exponent = (top >> kMantissa) - kBias;
  if (top >> kMantissa == 0) {
    // Subnormal: by the place of the leading bit.
    exponent += 1 - kMantissa;
    for (S rest = top; rest > 1; rest >>= 1) ++exponent;
  }
  return {exponent, true};
}

}  // namespace
