// Singular values of NumPy arrays.
#include <vector>

#include "bind/arrays.hpp"
#include "bind/bind.hpp"
#include "bind/call.hpp"
#include "spectra/singular.hpp"

namespace depthgauge {
namespace {

// Where the matrices of an array (..., n, k) begin, in C order of the leading axes.
std::vector<int64_t> matrix_offsets(const py::array& a) {
  std::vector<int64_t> offsets{0};
  for (py::ssize_t axis = 0; axis + 2 < a.ndim(); ++axis) {
    std::vector<int64_t> finer;
    finer.reserve(offsets.size() * static_cast<size_t>(a.shape(axis)));
    for (const int64_t offset : offsets)
      for (py::ssize_t i = 0; i < a.shape(axis); ++i) finer.push_back(offset + i * a.strides(axis));
    offsets = std::move(finer);
  }
  return offsets;
}

template <class T>
void run_singular_values(const py::array& a, const py::array& values, const py::array& exponents,
                         const py::array& converged, const std::string& target, int threads) {
  if (!py::isinstance<py::array_t<T>>(a) || a.ndim() < 2)
    throw std::invalid_argument("a must be an array (..., n, k) of " + std::string(py::str(py::dtype::of<T>())));
  const std::vector<int64_t> offsets = matrix_offsets(a);
  const py::ssize_t row = a.ndim() - 2, column = a.ndim() - 1;
  const spectra::Batch batch{static_cast<const char*>(a.data()),
                             offsets.data(),
                             static_cast<int64_t>(offsets.size()),
                             a.shape(row),
                             a.shape(column),
                             a.strides(row),
                             a.strides(column)};
  T* const to = data_of<T>(values, "values", batch.count * std::min(batch.rows, batch.columns), true);
  int64_t* const exponent = data_of<int64_t>(exponents, "exponents", batch.count, true);
  bool* const flags = data_of<bool>(converged, "converged", batch.count, true);
  run_released(target, threads, [&](const Resources& resources) {
    spectra::singular_values(batch, to, exponent, flags, resources);
  });
}

}  // namespace

void bind_spectra(py::module_& m) {
  m.def("singular_values_float32", &run_singular_values<float>);
  m.def("singular_values_float64", &run_singular_values<double>);
}

}  // namespace depthgauge
