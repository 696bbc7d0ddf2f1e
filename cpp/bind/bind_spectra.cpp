// Singular values of NumPy arrays.
#include <algorithm>

#include "bind/arrays.hpp"
#include "bind/bind.hpp"
#include "bind/call.hpp"
#include "spectra/singular.hpp"

namespace depthgauge {
namespace {

template <class T>
void run_singular_values(const py::array& a, const py::array& values, const py::array& exponents,
                         const py::array& converged, const std::string& target, int threads) {
  if (!py::isinstance<py::array_t<T>>(a) || a.ndim() < 2)
    throw std::invalid_argument("a must be an array (..., n, k) of " + std::string(py::str(py::dtype::of<T>())));
  const py::ssize_t row = a.ndim() - 2, column = a.ndim() - 1;
  const spectra::Batch batch{static_cast<const char*>(a.data()),
                             leading_axes(a),
                             a.shape(row),
                             a.shape(column),
                             a.strides(row),
                             a.strides(column)};
  const int64_t count = batch.axes.count();
  T* const to = data_of<T>(values, "values", count * std::min(batch.rows, batch.columns), true);
  int64_t* const exponent = data_of<int64_t>(exponents, "exponents", count, true);
  bool* const flags = data_of<bool>(converged, "converged", count, true);
  run_released(target, threads,
               [&](const Resources& resources) { spectra::singular_values(batch, to, exponent, flags, resources); });
}

}  // namespace

void bind_spectra(py::module_& m) {
  m.def("singular_values_float32", &run_singular_values<float>);
  m.def("singular_values_float64", &run_singular_values<double>);
}

}  // namespace depthgauge
