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
#if defined(__x86_64__)
  return {Target::baseline, Target::v3, Target::v4};
#else
  return {Target::baseline};
#endif
}

std::vector<Target> supported_targets() {
  std::vector<Target> found;
  for (const Target t : compiled_targets()) {
#if defined(__x86_64__)
    if (t == Target::v3 && !__builtin_cpu_supports("x86-64-v3")) continue;
    if (t == Target::v4 && !__builtin_cpu_supports("x86-64-v4")) continue;
#endif
    found.push_back(t);
  }
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
