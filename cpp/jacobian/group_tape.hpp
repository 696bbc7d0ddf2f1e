// A group of examples on its way through a segment of layers, all of whose forward pass is in memory.
#pragma once

#include <cstdint>

#include "common/stop.hpp"
#include "jacobian/kernels.hpp"
#include "stack/plan.hpp"

namespace depthgauge::jacobian {

template <class T>
class GroupTape {
 public:
  // Elements of memory, in whole cache lines, for any group of a stack and that many layers.
  static int64_t size(const stack::Stack<T>& stack, int64_t layers);

  // `layers` layers from layer `first` on.
  GroupTape(const stack::Stack<T>& stack, int64_t replicate, int64_t group, int64_t first, int64_t layers, T* memory);

  // Takes the group forward; `states`, [replicate][example][feature] of the whole stack, have its new ones then.
  void forward(const stack::Kernels<T>& table, T* states, T* workspace, double* totals, unsigned char* live,
               const Stop& stop);

  int examples() const { return unit_.examples; }
  // Example `lane` is this one of its stack; example b of replicate r is number r * examples + b.
  int64_t number(int lane) const { return first_number_ + lane; }

  const stack::Equation& equation() const { return part_.equation; }
  stack::Layer<T> layer(int64_t l) const { return part_.layer(part_.set_of[0], l, l + 1 < layers_ ? l + 1 : -1); }
  void linearize(const Kernels<T>& table, int64_t l, int lane, Request request, T* workspace, Linearized<T>* out) const;
  // Whether there is a NaN in the state after layer `l`.  Dead units pass nothing on, not even that, so that from here
  // on derivatives say nothing.
  bool is_lost(int64_t l, int lane) const;

 private:
  const T* state(int64_t l) const { return stack::state_of(part_, tape_.states, unit_, l); }

  stack::Stack<T> part_;
  int64_t layers_, first_number_;
  stack::Unit unit_;
  stack::TapeArrays<T> tape_;
};

}  // namespace depthgauge::jacobian
