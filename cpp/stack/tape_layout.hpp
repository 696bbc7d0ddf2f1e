// How a tape lies in memory: all of its parts in one piece, each at a cache line.
#pragma once

#include "stack/propagation.hpp"

namespace depthgauge::stack {

template <class T>
struct TapeLayout {
  static constexpr int64_t kLine = 64;
  static constexpr int kParts = 7 + kPlaces;
  int64_t bytes[kParts];  // in the order of `TapeArrays`, 0 for what the equation has no use for

  int64_t total() const;
  // Cuts the parts from memory that starts at a cache line.
  TapeArrays<T> cut(char* memory) const;
  // Parts that lie wherever they like, each at a cache line.
  static TapeArrays<T> of_parts(char* const (&parts)[kParts]);
};

template <class T>
TapeLayout<T> tape_layout(const Stack<T>& stack, bool with_activation);

}  // namespace depthgauge::stack
