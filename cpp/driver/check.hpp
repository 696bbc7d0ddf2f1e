// Checks that end the program with a message when they fail, and the numbers that they are made with.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "common/stop.hpp"

namespace depthgauge::driver {

// What this thread is at, for messages.
void set_context(std::string context);

// Counts a check.  A failed one prints what was violated, and where, and ends the program with status 1.
void check(bool holds, const char* property, const char* detail = "");

int64_t checks_done();

inline Stop never() {
  return {[](void*) { return false; }, nullptr};
}

// The same numbers with every compiler: the engine is standardized, the standard distributions are not.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t below(int64_t limit) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(limit)); }
  bool one_in(int64_t n) { return below(n) == 0; }
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  // Mean 0, variance 1, and no tails, so that bounds on rounding errors can be simple.
  double centered() { return (uniform() - 0.5) * 3.4641016151377544; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace depthgauge::driver
