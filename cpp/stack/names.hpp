// The names of a stack's options and weights, in the order of their enumerations.
#pragma once

#include <iterator>

#include "stack/propagation.hpp"

namespace depthgauge::stack {

#define DG_NAME(name, ...) #name,
inline constexpr const char* kBranchNames[] = {DG_BRANCHES(DG_NAME)};
inline constexpr const char* kNormNames[] = {DG_NORMS(DG_NAME)};
inline constexpr const char* kActivationNames[] = {DG_ACTIVATIONS(DG_NAME)};
#undef DG_NAME

inline constexpr const char* kFieldNames[] = {"up",        "down",      "gate",         "b_up",
                                              "b_down",    "b_gate",    "pre_gain",     "output_gain",
                                              "post_gain", "pre_shift", "output_shift", "post_shift"};
static_assert(std::size(kFieldNames) == kFields);

}  // namespace depthgauge::stack
