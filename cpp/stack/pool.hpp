// Sums of squares and largest magnitudes of many values, safe from overflow and underflow.
#pragma once

#include <cstdint>

#include "stack/kernels.hpp"

namespace depthgauge::stack {

// The power of two that brings a positive, finite `top` near 1; as its inverse it is a normal number.
double near_one(double top);

// The sum of (power * value(k))^2.
template <class Value>
double scaled_squares(int64_t count, double power, Value value) {
  double sum = 0;
  for (int64_t k = 0; k < count; ++k) sum += (value(k) * power) * (value(k) * power);
  return sum;
}

// Pools more values into `into`, bringing both sums to the power of two of the larger values.
void merge(Pool& into, const Pool& more);

// The values of an array, pooled; not counted are those that are not finite.
template <class T>
Pool pool_values(const T* values, int64_t count);

double root_mean_square(const Pool& pool, int64_t count);

// The Euclidean norm of a finite vector.
double norm_of(const double* values, int64_t count);

}  // namespace depthgauge::stack
