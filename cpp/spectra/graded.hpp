// Singular values to high relative accuracy: of single matrices, and the logs of those of products.
#pragma once

#include <cstdint>
#include <vector>

#include "common/leading_axes.hpp"
#include "common/resources.hpp"
#include "spectra/graded_kernels.hpp"

namespace depthgauge::spectra {

GradedKernels graded_kernels(Target target);

// Natural logs of the `found` values * 2^exponents of a product, and -inf for what it lacks of `wanted`.
void write_logs(const double* values, const int64_t* exponents, int64_t found, int64_t wanted, double* logs);

// One factor for each member of a batch.
struct Factors {
  Factor first;
  LeadingAxes axes;
};

// Whether each factor has as many columns as the one before it has rows.
bool chained(const std::vector<Factors>& factors);

// Natural logs of the singular values of factors[L-1] ... factors[0], descending, -inf for each rank that is lost:
// member b has `count` logs at logs + b * count, or with `prefixes` L times as many, those after each factor.  What a
// smaller product lacks is NaN; so is all of a product with a NaN or an Inf in it, or whose sweeps did not suffice.
void log_singular_values(const std::vector<Factors>& factors, int64_t members, bool prefixes, int64_t count,
                         double* logs, const Resources& call);

// The singular values of each member, descending, min(rows, columns) of them at a time.
template <class T>
void relative_singular_values(const Factors& matrices, int64_t members, T* values, const Resources& call);

}  // namespace depthgauge::spectra
