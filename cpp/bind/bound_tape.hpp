// What a forward pass keeps for derivatives, opaque to Python: it knows its states, pickles, and counts its bytes.
#pragma once

#include "bind/arrays.hpp"
#include "stack/tape_layout.hpp"

namespace depthgauge {

template <class T>
class BoundTape {
 public:
  // Memory for the forward pass of a stack.
  BoundTape(const stack::Stack<T>& stack, bool with_activation);
  // What `to_state` returned; anything else raises.
  explicit BoundTape(const py::tuple& state);

  // The parts, for a pass over the stack that they were kept of; other stacks raise.
  const stack::TapeArrays<T>& of(const stack::Stack<T>& stack) const;
  int64_t examples() const { return sizes_.examples; }
  int64_t nbytes() const { return layout_.total(); }
  // The tape of one example as that of up to a group of copies of it: all lanes of its group hold it.
  BoundTape of_copies(int64_t count) const;
  // States as rows, (R, L+1, B, d).
  py::array states() const;
  // Plain data, the same on every instruction set.
  py::tuple to_state() const;

 private:
  struct Sizes {
    int64_t replicates, depth, examples, width;
    bool operator==(const Sizes& other) const {
      return replicates == other.replicates && depth == other.depth && examples == other.examples &&
             width == other.width;
    }
  };
  static Sizes sizes_of(const stack::Stack<T>& stack) {
    return {stack.replicates, stack.depth, stack.examples, stack.equation.width};
  }
  void check_state() const;
  void allocate();
  char* start() const;

  Sizes sizes_;
  stack::TapeLayout<T> layout_;
  py::array memory_;
  stack::TapeArrays<T> arrays_;
};

}  // namespace depthgauge
