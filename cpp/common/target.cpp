#include "common/target.hpp"

#include <algorithm>
#include <stdexcept>

namespace depthgauge {

const char* name(Target target) {
  switch (target) {
    case Target::baseline: return "baseline";
    case Target::v3: return "v3";
    case Target::v4: return "v4";
  }
  return "unknown";
}

std::vector<Target> compiled_targets() {
  return {
      Target::baseline,
#if defined(DG_HAVE_v3)
      Target::v3,
#endif
#if defined(DG_HAVE_v4)
      Target::v4,
#endif
  };
}

// Not every compiler knows the levels of x86-64 by name, but all know the features that tell them apart.
static bool runs_here(Target target) {
#if defined(__x86_64__)
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  if (target == Target::v3) return v3;
  if (target == Target::v4)
    return v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
#endif
  return target == Target::baseline;
}

std::vector<Target> supported_targets() {
  std::vector<Target> found;
  for (const Target t : compiled_targets())
    if (runs_here(t)) found.push_back(t);
  return found;
}

Target choose_target(const std::string& forced) {
  const std::vector<Target> supported = supported_targets();
  if (forced.empty()) return supported.back();
  std::string listing;
  for (const Target t : supported) {
    if (forced == name(t)) return t;
    listing += (listing.empty() ? "" : ", ") + std::string(name(t));
  }
  const std::vector<Target> compiled = compiled_targets();
  const bool known = std::any_of(compiled.begin(), compiled.end(), [&](Target t) { return forced == name(t); });
  throw std::invalid_argument("DEPTHGAUGE_TARGET='" + forced + "' " +
                              (known ? "is not supported by this CPU" : "is unknown") + "; this CPU runs: " + listing);
}

}  // namespace depthgauge
