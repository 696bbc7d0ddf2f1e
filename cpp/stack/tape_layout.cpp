#include "stack/tape_layout.hpp"

#include <type_traits>

namespace depthgauge::stack {
namespace {

// Visits the parts of a tape in the order in which they lie; the only list of them.
template <class T, class Visit>
void each_part(TapeArrays<T>& tape, Visit visit) {
  visit(tape.states);
  for (NormFactors<T>*& factors : tape.factors) visit(factors);
  visit(tape.branch);
  visit(tape.sum);
  visit(tape.positive);
  visit(tape.derivative);
  visit(tape.gate_value);
  visit(tape.activation);
}

int64_t whole_lines(int64_t bytes, int64_t line) { return (bytes + line - 1) / line * line; }

}  // namespace

template <class T>
int64_t TapeLayout<T>::total() const {
  int64_t sum = 0;
  for (const int64_t part : bytes) sum += whole_lines(part, kLine);
  return sum;
}

template <class T>
TapeArrays<T> TapeLayout<T>::cut(char* memory) const {
  TapeArrays<T> tape;
  tape.states = reinterpret_cast<T*>(memory);  // there is one always, if of no bytes
  const int64_t* size = bytes;
  each_part(tape, [&](auto*& part) {
    if (*size) part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(memory);
    memory += whole_lines(*size++, kLine);
  });
  return tape;
}

template <class T>
TapeLayout<T> tape_layout(const Stack<T>& stack, bool with_activation) {
  const TapeSizes sizes = tape_sizes(stack);
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  return {{sizes.states * kSize, sizes.factors[kPre] * kSize, sizes.factors[kOutput] * kSize,
           sizes.factors[kPost] * kSize, sizes.branch * kSize, sizes.sum * kSize, sizes.positive * 2,
           sizes.derivative * kSize, sizes.gate_value * kSize, with_activation ? sizes.activation * kSize : 0}};
}

template struct TapeLayout<float>;
template struct TapeLayout<double>;
template TapeLayout<float> tape_layout(const Stack<float>&, bool);
template TapeLayout<double> tape_layout(const Stack<double>&, bool);

}  // namespace depthgauge::stack
