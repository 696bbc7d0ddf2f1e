// A stack that Python made once and calls as often as it likes: checked here, its arrays kept alive.
//
// Every array is checked again for dtype, layout and size, so that a mistake in Python raises and never reads or writes
// where it should not.
#pragma once

#include <string>
#include <vector>

#include "bind/arrays.hpp"
#include "stack/names.hpp"

namespace depthgauge {

void check_indices(const int64_t* index, int64_t count, int64_t below, const std::string& what);

// Rows (..., example, feature) of any strides; the leading axes fill the last places before them.
template <class T>
stack::Rows<T> read_rows(const py::array& array, const std::vector<int64_t>& shape, const char* what);

template <class T>
class BoundStack {
 public:
  // `block` has the attributes of `depthgauge.Block`; `parameters` maps the names of fields to pairs of an array
  // (F, L, ...) and the index (S,) of the entry that each weight set uses.
  BoundStack(const py::object& block, int64_t depth, int64_t width, int64_t hidden, const py::tuple& replicates,
             const py::array& set_of, int64_t sets, const py::array& branch_scale, const py::array& skip_scale,
             const py::dict& parameters);

  BoundStack(const BoundStack&) = delete;
  BoundStack& operator=(const BoundStack&) = delete;

  stack::Stack<T> with_examples(int64_t examples) const {
    stack::Stack<T> stack = stack_;
    stack.examples = examples;
    return stack;
  }
  // The axes that results have in place of the replicates.
  const std::vector<py::ssize_t>& replicate_axes() const { return replicate_axes_; }
  // The fields that the stack has, in the order in which Python gave them.
  const std::vector<int>& fields() const { return fields_; }
  // The axes of one weight set of a field, layers first.
  const std::vector<py::ssize_t>& field_axes(int field) const { return field_axes_[static_cast<size_t>(field)]; }

 private:
  void read_equation(const py::object& block);
  void read_field(int field, const py::tuple& pair);

  stack::Stack<T> stack_{};
  std::vector<py::ssize_t> replicate_axes_;
  std::vector<int> fields_;
  std::vector<std::vector<py::ssize_t>> field_axes_;
  // Copies, for whoever changed them afterwards would send kernels anywhere.
  std::vector<int64_t> set_of_, index_[stack::kFields];
  std::vector<py::object> kept_;
};

}  // namespace depthgauge
