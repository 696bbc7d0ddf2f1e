// The stacks that the checks run on: few enough to take a minute, chosen so that every option meets every other.
#pragma once

#include <string>
#include <vector>

#include "driver/arrays.hpp"

namespace depthgauge::driver {

struct Case {
  stack::Equation equation;
  bool biases, gains, shifts;
  int64_t depth, replicates, examples, probes;
  bool own_weights;  // a weight set for each replicate, or one for all
  bool own_inputs;
  bool quantiles, cosine;
  bool activations;  // kept on the tape
  Layout layout;
  int threads;  // compared with one
  uint64_t seed;
};

std::string describe(const Case& c, const char* precision, Target target);

// Every branch with every activation and every norm at every place, the other options in shuffled turns.  Only each
// `stride`-th case is made; different salts deal the options differently.
std::vector<Case> covering_cases(uint64_t salt, int stride);

// Sizes beyond the blocking of the kernels, one at a time, and axes without elements.
std::vector<Case> special_cases();

// The same for checks of Jacobians.  A Jacobian is made of one example, so that of wide stacks two do.
std::vector<Case> special_jacobian_cases();

// Some of moderate size, for checks of calls rather than of numbers.
std::vector<Case> concurrent_cases();

}  // namespace depthgauge::driver
