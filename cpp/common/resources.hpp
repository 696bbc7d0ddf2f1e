// What a call may use.
#pragma once

#include "common/stop.hpp"
#include "common/target.hpp"

namespace depthgauge {

struct Resources {
  Target target;
  int threads;
  Stop stop;
};

}  // namespace depthgauge
