// Calls into the namespace of one instruction set, of those that were compiled.
#pragma once

#include "common/target.hpp"

#if defined(DG_HAVE_v3)
#define DG_CASE_V3(call) \
  case ::depthgauge::Target::v3: v3::call; break;
#else
#define DG_CASE_V3(call)
#endif
#if defined(DG_HAVE_v4)
#define DG_CASE_V4(call) \
  case ::depthgauge::Target::v4: v4::call; break;
#else
#define DG_CASE_V4(call)
#endif

#define DG_DISPATCH(target, call)   \
  switch (target) {                 \
    DG_CASE_V4(call)                \
    DG_CASE_V3(call)                \
    default: baseline::call; break; \
  }
