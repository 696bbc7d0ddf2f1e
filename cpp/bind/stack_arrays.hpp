// A stack, its tape and rows of examples, as Python hands them over: dicts of arrays.
//
// Every array is checked here again for dtype, layout and size, so that a mistake in Python raises and never reads or
// writes where it should not.
#pragma once

#include <string>
#include <vector>

#include "bind/arrays.hpp"
#include "stack/propagation.hpp"

namespace depthgauge {

// The names of the fields of weights, in the order of `FieldName`.
extern const char* const kFieldNames[stack::kFields];

// An optional entry of a dict: null where it is absent or None.
template <class T>
T* entry(const py::dict& d, const char* key, int64_t count, bool writable) {
  if (!d.contains(key) || d[key].is_none()) return nullptr;
  return data_of<T>(d[key], key, count, writable);
}

template <class T>
T* needed(const py::dict& d, const char* key, int64_t count, bool writable) {
  T* found = entry<T>(d, key, count, writable);
  if (!found) throw std::invalid_argument(std::string(key) + " is missing");
  return found;
}

void check_indices(const int64_t* index, int64_t count, int64_t below, const std::string& what);

template <class T>
stack::Stack<T> read_stack(const py::dict& d);

// A new tape, all of it in one piece of memory, its parts at cache lines.
template <class T>
py::dict new_tape(const stack::Stack<T>& stack, bool with_activation);

template <class T>
stack::TapeArrays<T> read_tape(const stack::Stack<T>& stack, const py::dict& d, bool writable);

// Rows (..., example, feature) of any strides; the leading axes fill the last places before them.
template <class T>
stack::Rows<T> read_rows(const py::array& array, const std::vector<int64_t>& shape, const char* what);

}  // namespace depthgauge
