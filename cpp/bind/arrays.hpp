// NumPy arrays as the kernels see them.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/leading_axes.hpp"

namespace depthgauge {

namespace py = pybind11;

// A new array, not initialized.  A large one owns memory that is handed out again once the array is gone.
py::array empty(const py::tuple& shape, const py::dtype& dtype);

// The data of a C-order array of the right type with `count` elements.
template <class T>
T* data_of(py::handle object, const std::string& what, int64_t count, bool writable) {
  if (!py::isinstance<py::array_t<T>>(object))
    throw std::invalid_argument(what + " must be an array of " + std::string(py::str(py::dtype::of<T>())));
  const py::array array = py::reinterpret_borrow<py::array>(object);
  if (!(array.flags() & py::array::c_style)) throw std::invalid_argument(what + " must be C-contiguous");
  if (static_cast<int64_t>(array.size()) != count)
    throw std::invalid_argument(what + " must have " + std::to_string(count) + " elements, not " +
                                std::to_string(array.size()));
  if (writable && !array.writeable()) throw std::invalid_argument(what + " must be writable");
  return static_cast<T*>(const_cast<void*>(array.data()));
}

// The leading axes of an array of matrices, (..., rows, columns).
inline LeadingAxes leading_axes(const py::array& array) {
  const py::ssize_t axes = array.ndim() - 2;
  return {{array.shape(), array.shape() + axes}, {array.strides(), array.strides() + axes}};
}

}  // namespace depthgauge
