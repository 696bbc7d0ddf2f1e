// States through stacks, and the accumulators of Jacobians that follow them.
#pragma once

#include <cstdint>
#include <vector>

#include "common/resources.hpp"
#include "stack/propagation.hpp"

namespace depthgauge::jacobian {

// A stack, the states of its examples, [replicate][example][feature], where they are, and what follows them.
template <class T, class A>
struct Member {
  stack::Stack<T> stack;
  T* states;
  std::vector<A*> accumulators;
};

// Takes the states of all members, and their accumulators, through `blocks` layers from layer `first` on.  Members may
// have different equations, but the same shapes and kind of branch.
//
// Some groups of examples pass a segment of layers at a time: their forward pass first, whose tape is bounded so, and
// then the Jacobians of all of their examples.
template <class T, class A>
void propagate(const std::vector<Member<T, A>>& members, int64_t first, int64_t blocks, const Resources& resources);

}  // namespace depthgauge::jacobian
