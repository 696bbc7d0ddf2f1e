#include "jacobian/group_tape.hpp"

#include <algorithm>
#include <cmath>

#include "stack/tape_layout.hpp"

namespace depthgauge::jacobian {
namespace {

// One group of examples of a stack as a stack by itself, from layer `first` on.
template <class T>
stack::Stack<T> part_of(const stack::Stack<T>& whole, int64_t replicate, int64_t group, int64_t first) {
  stack::Stack<T> part = whole;
  part.replicates = 1;
  part.examples = std::min<int64_t>(stack::kGroup<T>, whole.examples - group * stack::kGroup<T>);
  part.set_of += replicate;
  part.branch_scale += first;
  part.skip_scale += first;
  // The number of layers stays, being the distance from set to set.
  for (stack::Field<T>& field : part.fields)
    if (field.data) field.data += first * field.size;
  return part;
}

// The tape of a group in that many layers.
template <class T>
stack::TapeLayout<T> layout_of(const stack::Stack<T>& part, int64_t layers) {
  stack::Stack<T> some = part;
  some.depth = layers;
  return stack::tape_layout(some, false);
}

}  // namespace

template <class T>
int64_t GroupTape<T>::size(const stack::Stack<T>& stack, int64_t layers) {
  stack::Stack<T> part = stack;
  part.replicates = part.examples = 1;
  return layout_of(part, layers).total() / static_cast<int64_t>(sizeof(T));
}

template <class T>
GroupTape<T>::GroupTape(const stack::Stack<T>& stack, int64_t replicate, int64_t group, int64_t first, int64_t layers,
                        T* memory)
    : part_(part_of(stack, replicate, group, first)),
      layers_(layers),
      first_number_(replicate * stack.examples + group * stack::kGroup<T>),
      unit_{0, 0, 0, static_cast<int>(part_.examples)},
      tape_(layout_of(part_, layers).cut(reinterpret_cast<char*>(memory))) {}

template <class T>
void GroupTape<T>::forward(const stack::Kernels<T>& table, T* states, T* workspace, double* totals, unsigned char* live,
                           const Stop& stop) {
  const stack::Equation& eq = part_.equation;
  T* const own = states + first_number_ * eq.width;
  constexpr auto size = static_cast<int64_t>(sizeof(T));
  const stack::Rows<T> rows{reinterpret_cast<const char*>(own), {0, 0, eq.width * size, size}};
  stack::read_group(rows, 0, 0, unit_, eq.width, tape_.states);
  stack::Moments moments;
  stack::ForwardJob<T> job{};
  table.moments(tape_.states, eq.width, unit_.examples, &moments, &job.next_pool, totals);
  job.moments = &moments;
  job.totals = totals;
  job.unit_live = live;
  job.examples = unit_.examples;
  for (int64_t l = 0; l < layers_; ++l) {
    job.state = stack::state_of(part_, tape_.states, unit_, l);
    job.next = stack::state_of(part_, tape_.states, unit_, l + 1);
    job.tape = stack::tape_of(part_, tape_, unit_, l);
    table.forward(eq, layer(l), &job, 1, workspace, stop);
  }
  stack::write_group(state(layers_), eq.width, unit_, own);
}

template <class T>
void GroupTape<T>::linearize(const Kernels<T>& table, int64_t l, int lane, Request request, T* workspace,
                             Linearized<T>* out) const {
  table.linearize(part_.equation, layer(l), stack::tape_of(part_, tape_, unit_, l), state(l), lane, request, workspace,
                  out);
}

template <class T>
bool GroupTape<T>::is_lost(int64_t l, int lane) const {
  const T* const h = state(l + 1);
  for (int64_t k = 0; k < part_.equation.width; ++k)
    if (std::isnan(h[k * stack::kGroup<T> + lane])) return true;
  return false;
}

template class GroupTape<float>;
template class GroupTape<double>;

}  // namespace depthgauge::jacobian
