// What both walks share: the examples of a stack whose forward pass is on a tape, and how they go through it.
#pragma once

#include <algorithm>
#include <cmath>
#include <stdexcept>

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

// Refuses layers that a walk of `count` examples cannot pass.
template <class T>
void check_passage(const stack::Stack<T>& stack, int64_t width, int64_t count, int64_t first, int64_t blocks,
                   Target target, Target of_walk) {
  if (stack.equation.width != width || stack.replicates * stack.examples != count)
    throw std::invalid_argument("the stack is not of the walk's width and number of examples");
  if (first < 0 || blocks < 0 || blocks > stack.depth - first)
    throw std::invalid_argument("the stack does not have those layers");
  if (target != of_walk) throw std::invalid_argument("a walk stays with its instruction set");
}

// task(from, to) over some rows at a time, in whole blocks of the products: one block of a wide stack can take seconds.
template <class Task>
void in_portions(int64_t rows, const Stop& stop, Task&& task) {
  constexpr int64_t kPortion = 96;
  for (int64_t from = 0; from < rows && !stop(); from += kPortion) task(from, std::min(from + kPortion, rows));
}

}  // namespace depthgauge::jacobian
