// How long calls are told to end.
#pragma once

namespace depthgauge {

// Asked about once a millisecond of work; true stops it.
struct Stop {
  bool (*ask)(void*);
  void* context;
  __attribute__((always_inline)) bool operator()() const { return ask(context); }
};

}  // namespace depthgauge
