#include "bind/bound_tape.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "stack/plan.hpp"

namespace depthgauge {

template <class T>
BoundTape<T>::BoundTape(const stack::Stack<T>& stack, bool with_activation)
    : sizes_(sizes_of(stack)), layout_(stack::tape_layout(stack, with_activation)) {
  allocate();
}

template <class T>
BoundTape<T>::BoundTape(const py::tuple& state) {
  if (state.size() != 6) throw std::invalid_argument("this is no tape");
  sizes_ = {state[0].cast<int64_t>(), state[1].cast<int64_t>(), state[2].cast<int64_t>(), state[3].cast<int64_t>()};
  const auto parts = state[4].cast<py::tuple>();
  if (parts.size() != stack::TapeLayout<T>::kParts) throw std::invalid_argument("this tape is of another version");
  for (size_t i = 0; i < parts.size(); ++i) layout_.bytes[i] = parts[i].cast<int64_t>();
  check_state();
  const auto* const from = data_of<unsigned char>(state[5], "tape", layout_.total(), false);
  allocate();
  std::memcpy(start(), from, static_cast<size_t>(layout_.total()));
}

// That sizes are sizes, together no more than memory may have, and that the states are there; what else a pass needs is
// checked against its stack.
template <class T>
void BoundTape<T>::check_state() const {
  constexpr int64_t kMost = int64_t{1} << 56;
  const auto size = [](int64_t n) { return n >= 0 && n <= kMost; };
  int64_t states = 0;
  const bool fits =
      std::all_of(std::begin(layout_.bytes), std::end(layout_.bytes), size) && size(sizes_.replicates) &&
      size(sizes_.depth) && size(sizes_.examples) && size(sizes_.width) &&
      !__builtin_mul_overflow(sizes_.replicates, sizes_.depth + 1, &states) &&
      !__builtin_mul_overflow(states, (sizes_.examples + stack::kGroup<T> - 1) / stack::kGroup<T>, &states) &&
      !__builtin_mul_overflow(states, sizes_.width, &states) &&
      !__builtin_mul_overflow(states, stack::TapeLayout<T>::kLine, &states);
  if (!fits || states != layout_.bytes[0]) throw std::invalid_argument("the sizes of this tape do not fit together");
}

template <class T>
void BoundTape<T>::allocate() {
  constexpr int64_t kLine = stack::TapeLayout<T>::kLine;
  memory_ = empty(py::make_tuple(layout_.total() + kLine), py::dtype::of<unsigned char>());
  arrays_ = layout_.cut(start());
}

template <class T>
char* BoundTape<T>::start() const {
  constexpr uintptr_t kLine = stack::TapeLayout<T>::kLine;
  auto* const memory = static_cast<char*>(const_cast<void*>(memory_.data()));
  return memory + (kLine - reinterpret_cast<uintptr_t>(memory) % kLine) % kLine;
}

template <class T>
const stack::TapeArrays<T>& BoundTape<T>::of(const stack::Stack<T>& stack) const {
  const stack::TapeLayout<T> needed = stack::tape_layout(stack, arrays_.activation != nullptr);
  if (!(sizes_ == sizes_of(stack)) || !std::equal(std::begin(needed.bytes), std::end(needed.bytes), layout_.bytes))
    throw std::invalid_argument("the tape is of another stack");
  return arrays_;
}

template <class T>
BoundTape<T> BoundTape<T>::of_copies(int64_t count) const {
  if (sizes_.examples != 1 || count < 1 || count > stack::kGroup<T>)
    throw std::invalid_argument("only the tape of one example is that of copies, and of no more than a group");
  BoundTape copies = *this;
  copies.sizes_.examples = count;
  return copies;
}

template <class T>
py::array BoundTape<T>::states() const {
  const auto [R, L, B, d] = sizes_;
  py::array rows = empty(py::make_tuple(R, L + 1, B, d), py::dtype::of<T>());
  T* const to = static_cast<T*>(rows.mutable_data());
  const int64_t groups = (B + stack::kGroup<T> - 1) / stack::kGroup<T>;
  for (int64_t layer = 0; layer < R * (L + 1); ++layer)
    for (int64_t g = 0; g < groups; ++g) {
      const stack::Unit unit{0, 0, g, static_cast<int>(std::min<int64_t>(stack::kGroup<T>, B - g * stack::kGroup<T>))};
      stack::write_group(arrays_.states + (layer * groups + g) * d * stack::kGroup<T>, d, unit, to + layer * B * d);
    }
  return rows;
}

template <class T>
py::tuple BoundTape<T>::to_state() const {
  constexpr int kParts = stack::TapeLayout<T>::kParts;
  py::tuple parts(kParts);
  for (int i = 0; i < kParts; ++i) parts[static_cast<size_t>(i)] = layout_.bytes[i];
  const py::array_t<unsigned char> bytes(layout_.total(), reinterpret_cast<const unsigned char*>(start()));
  return py::make_tuple(sizes_.replicates, sizes_.depth, sizes_.examples, sizes_.width, parts, bytes);
}

template class BoundTape<float>;
template class BoundTape<double>;

}  // namespace depthgauge
