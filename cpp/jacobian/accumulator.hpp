// What accumulators of Jacobians have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "common/resources.hpp"
#include "jacobian/group_tape.hpp"

namespace depthgauge::jacobian {

// The Jacobians of `count` examples of one stack, from the identity forward, block after block.
class Accumulator {
 public:
  Accumulator(Target target, int64_t width, int64_t count) : target_(target), width_(width), count_(count) {}

  int64_t width() const { return width_; }
  int64_t count() const { return count_; }
  // Blocks passed so far.
  int64_t passed() const { return passed_; }

  // Refuses a stack that it cannot follow.
  template <class T>
  void check(const stack::Stack<T>& stack, Target target) const {
    if (stack.equation.width != width_ || stack.replicates * stack.examples != count_)
      throw std::invalid_argument("the stack is not of the accumulator's width and number of examples");
    if (target != target_) throw std::invalid_argument("an accumulator stays with its instruction set");
  }
  // To be called when every example has been taken through so many blocks.
  void count_passed(int64_t blocks) { passed_ += blocks; }

 protected:
  const Target target_;
  const int64_t width_, count_;
  int64_t passed_ = 0;
};

// One example of a group, to be followed by an accumulator through the blocks of the group's tape.
template <class T, class A>
struct Task {
  A* accumulator;
  const GroupTape<T>* tape;
  int lane;

  int64_t number() const { return tape->number(lane); }
};

// body(from, to) over some rows at a time, in whole blocks of the products: one block of a wide stack can take seconds.
template <class Body>
void in_portions(int64_t rows, const Stop& stop, Body&& body) {
  for (int64_t from = 0; from < rows && !stop(); from += kRowBlock) body(from, std::min(from + kRowBlock, rows));
}

}  // namespace depthgauge::jacobian
