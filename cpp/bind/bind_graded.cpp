// Singular values to high relative accuracy, on NumPy arrays.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind/arrays.hpp"
#include "bind/bind.hpp"
#include "bind/call.hpp"
#include "spectra/graded.hpp"

namespace py = pybind11;

namespace depthgauge {
namespace {

using namespace spectra;

// An array (..., rows, columns) of any strides.
template <class T>
Factors read_factors(const py::array& array) {
  if (!py::isinstance<py::array_t<T>>(array) || array.ndim() < 2)
    throw std::invalid_argument("a factor has the wrong dtype or number of axes");
  const py::ssize_t row = array.ndim() - 2, column = array.ndim() - 1;
  return {{static_cast<const char*>(array.data()), array.shape(row), array.shape(column), array.strides(row),
           array.strides(column), sizeof(T) == sizeof(float)},
          leading_axes(array)};
}

template <class T>
T* results(const py::array& array, const std::vector<int64_t>& shape) {
  if (!std::equal(shape.begin(), shape.end(), array.shape(), array.shape() + array.ndim()))
    throw std::invalid_argument("results have the wrong shape");
  return data_of<T>(array, "results", array.size(), true);
}

template <class T>
void run_logs(const std::vector<py::array>& arrays, bool prefixes, const py::array& logs, const std::string& target,
              int threads) {
  if (arrays.empty()) throw std::invalid_argument("there must be a factor");
  std::vector<Factors> factors;
  for (const py::array& array : arrays) factors.push_back(read_factors<T>(array));
  const int64_t members = factors[0].axes.count();
  for (const Factors& f : factors)
    if (f.axes.count() != members) throw std::invalid_argument("factors must have one matrix for each product");
  if (!chained(factors)) throw std::invalid_argument("factors must chain");
  const int64_t count = logs.ndim() ? logs.shape(logs.ndim() - 1) : 0;
  std::vector<int64_t> shape{members, count};
  if (prefixes) shape.insert(shape.begin() + 1, static_cast<int64_t>(arrays.size()));
  double* const out = results<double>(logs, shape);
  run_released(target, threads, [&](const Resources& resources) {
    log_singular_values(factors, members, prefixes, count, out, resources);
  });
}

template <class T>
void run_relative(const py::array& matrices, const py::array& values, const std::string& target, int threads) {
  const Factors factors = read_factors<T>(matrices);
  const int64_t members = factors.axes.count();
  T* const out = results<T>(values, {members, std::min(factors.first.rows, factors.first.columns)});
  run_released(target, threads,
               [&](const Resources& resources) { relative_singular_values(factors, members, out, resources); });
}

}  // namespace

void bind_graded(py::module_& m) {
  m.def("log_singular_values_float32", &run_logs<float>);
  m.def("log_singular_values_float64", &run_logs<double>);
  m.def("relative_singular_values_float32", &run_relative<float>);
  m.def("relative_singular_values_float64", &run_relative<double>);
}

}  // namespace depthgauge
