// Random normals into NumPy arrays.
#include "bind/arrays.hpp"
#include "bind/bind.hpp"
#include "bind/call.hpp"
#include "random/normals.hpp"

namespace depthgauge {
namespace {

template <class T>
void run_normals(const py::array& out, const py::array& seeds, int64_t first_layer, int64_t matrix, double deviation,
                 const std::string& target, int threads) {
  constexpr int64_t kWords = int64_t{1} << 32;
  if (out.ndim() != 3) throw std::invalid_argument("out must have the axes of seeds, layers and numbers");
  random::Request<T> request{};
  request.seed_count = out.shape(0);
  request.layers = out.shape(1);
  request.count = out.shape(2);
  request.out = data_of<T>(out, "out", out.size(), true);
  request.seeds = data_of<uint64_t>(seeds, "seeds", request.seed_count, false);
  if (first_layer < 0 || first_layer > kWords - request.layers || matrix < 0 || matrix >= kWords)
    throw std::invalid_argument("layers and matrix must fit words of 32 bits");
  request.first_layer = first_layer;
  request.matrix = static_cast<uint32_t>(matrix);
  request.deviation = static_cast<T>(deviation);
  run_released(target, threads, [&](const Resources& resources) { random::normals(request, resources); });
}

}  // namespace

void bind_random(py::module_& m) {
  m.def("normals_float32", &run_normals<float>);
  m.def("normals_float64", &run_normals<double>);
}

}  // namespace depthgauge
