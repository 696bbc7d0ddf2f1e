#include "stack/tape_layout.hpp"

#include <type_traits>

namespace depthgauge::stack {
namespace {

constexpr int64_t kLine = TapeLayout<float>::kLine;

int64_t whole_lines(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

template <class T>
int64_t TapeLayout<T>::total() const {
  int64_t sum = 0;
  for (const int64_t part : bytes) sum += whole_lines(part);
  return sum;
}

template <class T>
TapeArrays<T> TapeLayout<T>::of_parts(char* const (&parts)[kParts]) {
  TapeArrays<T> tape;
  char* const* part = parts;
  const auto take = [&](auto*& to) { to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(*part++); };
  take(tape.states);
  for (NormFactors<T>*& factors : tape.factors) take(factors);
  take(tape.branch);
  take(tape.sum);
  take(tape.positive);
  take(tape.derivative);
  take(tape.gate_value);
  take(tape.activation);
  return tape;
}

template <class T>
TapeArrays<T> TapeLayout<T>::cut(char* memory) const {
  char* parts[kParts];
  for (int part = 0; part < kParts; memory += whole_lines(bytes[part++]))
    parts[part] = bytes[part] || part == 0 ? memory : nullptr;  // there are states always, if of no bytes
  return of_parts(parts);
}

template <class T>
TapeLayout<T> tape_layout(const Stack<T>& stack, bool with_activation) {
  const Equation& eq = stack.equation;
  const int64_t groups = stack.replicates * stack.depth * stack.groups();
  const int64_t of_width = groups * eq.width * kLine, of_hidden = groups * eq.hidden * kLine;
  const bool gated = eq.branch == Branch::gated, bits = one_bit(eq.activation) && !gated;
  TapeLayout<T> layout{};
  int64_t* part = layout.bytes;
  *part++ = of_width + stack.replicates * stack.groups() * eq.width * kLine;  // a state more than layers
  for (int place = 0; place < kPlaces; ++place) {
    const bool has_factors = eq.norm[place] != Norm::none && eq.norm[place] != Norm::dyt;
    *part++ = has_factors ? groups * static_cast<int64_t>(sizeof(NormFactors<T>)) : 0;
  }
  *part++ = stack.active(kOutput) ? of_width : 0;
  *part++ = stack.active(kPost) ? of_width : 0;
  *part++ = bits ? groups * eq.hidden * static_cast<int64_t>(sizeof(uint16_t)) : 0;
  *part++ = bits ? 0 : of_hidden;
  *part++ = gated ? of_hidden : 0;
  *part++ = with_activation && eq.branch != Branch::linear ? of_hidden : 0;
  return layout;
}

template struct TapeLayout<float>;
template struct TapeLayout<double>;
template TapeLayout<float> tape_layout(const Stack<float>&, bool);
template TapeLayout<double> tape_layout(const Stack<double>&, bool);

}  // namespace depthgauge::stack
