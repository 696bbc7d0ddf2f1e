// The instruction sets that the kernels were compiled for, and the choice among them.
#pragma once

#include <string>
#include <vector>

namespace depthgauge {

enum class Target { baseline, v3, v4 };

const char* name(Target target);

// Compiled in, slowest first.
std::vector<Target> compiled_targets();

// Those of them that this CPU can run.
std::vector<Target> supported_targets();

// The best supported one, or the one called `forced` when that is not empty.
// Throws std::invalid_argument if it is unknown or not supported here.
Target choose_target(const std::string& forced);

}  // namespace depthgauge
