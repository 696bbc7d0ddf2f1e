// Several walks side by side, through stacks that have the same weights and differ in their equations.
#pragma once

#include <cstdint>
#include <vector>

#include "jacobian/walk.hpp"

namespace depthgauge::jacobian {

// A walk, its stack, and the states of its examples, [replicate][example][feature], where it is.
template <class T>
struct Traveler {
  Walk<T>* walk;
  stack::Stack<T> stack;
  T* states;
};

// Takes all walks, and their states, through `blocks` layers from layer `first` on.  A few layers at a time, whose
// weights stay in the caches, are passed by every walk, with a forward pass of its own, of which nothing is kept.
template <class T>
void advance_walks(const std::vector<Traveler<T>>& travelers, int64_t first, int64_t blocks,
                   const Resources& resources);

}  // namespace depthgauge::jacobian
