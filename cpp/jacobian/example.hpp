// One example of a stack whose forward pass is on a tape.
#pragma once

#include <cmath>

#include "jacobian/kernels.hpp"
#include "stack/plan.hpp"

namespace depthgauge::jacobian {

template <class T>
class Example {
 public:
  // Example b of replicate r is number r * examples + b.
  Example(const stack::Stack<T>& stack, const stack::TapeArrays<T>& tape, int64_t number)
      : stack_(stack),
        tape_(tape),
        unit_{0, number / stack.examples, number % stack.examples / stack::kGroup<T>, 1},
        lane_(static_cast<int>(number % stack.examples % stack::kGroup<T>)) {}

  stack::Layer<T> layer(int64_t l) const { return stack_.layer(stack_.set_of[unit_.replicate], l, l + 1); }

  void linearize(const Kernels<T>& table, int64_t l, Request request, T* memory, Linearized<T>* out) const {
    table.linearize(stack_.equation, layer(l), tape_of(stack_, tape_, unit_, l), state(l), lane_, request, memory, out);
  }

  // Whether there is a NaN in the state before layer `l`.  Dead units pass nothing on, not even that, so that from here
  // on derivatives say nothing.
  bool is_lost(int64_t l) const {
    const T* const h = state(l);
    for (int64_t k = 0; k < stack_.equation.width; ++k)
      if (std::isnan(h[k * stack::kGroup<T> + lane_])) return true;
    return false;
  }

 private:
  const T* state(int64_t l) const { return state_of(stack_, tape_.states, unit_, l); }

  const stack::Stack<T>& stack_;
  const stack::TapeArrays<T>& tape_;
  stack::Unit unit_;
  int lane_;
};

}  // namespace depthgauge::jacobian
