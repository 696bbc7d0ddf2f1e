// How long calls are told to end.
#pragma once

namespace depthgauge {

// Asked between pieces of work of about a millisecond; true stops the work.
struct Stop {
  bool (*ask)(void*);
  void* context;
  __attribute__((always_inline)) bool operator()() const { return ask(context); }
};

}  // namespace depthgauge
