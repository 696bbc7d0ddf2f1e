// How this extension was built, and what it finds on this machine.
#include <pybind11/stl.h>

#include <numeric>
#include <string>

#include "bind/bind.hpp"
#include "bind/call.hpp"
#include "common/target.hpp"
#include "common/thread_pool.hpp"
#include "stack/propagation.hpp"

namespace py = pybind11;

namespace depthgauge {
namespace {

std::vector<std::string> names(const std::vector<Target>& targets) {
  std::vector<std::string> found;
  for (const Target t : targets) found.emplace_back(name(t));
  return found;
}

py::dict build_info() {
  py::dict info;
  info["version"] = DEPTHGAUGE_VERSION;
#if defined(__clang__)
  info["compiler"] = "Clang " __clang_version__;
#else
  info["compiler"] = "GCC " __VERSION__;
#endif
  info["flags"] = DEPTHGAUGE_FLAGS;
  info["targets_compiled"] = names(compiled_targets());
  info["targets_supported"] = names(supported_targets());
  return info;
}

// Bare multiply-adds in registers on every thread, the limit of every product: returns how many flops were done.
template <class T>
double multiply_adds_of(const Resources& resources) {
  constexpr int64_t kSteps = 1000000;  // some milliseconds
  const stack::Kernels<T> table = stack::kernels<T>(resources.target);
  std::vector<double> flops(static_cast<size_t>(resources.threads));
  parallel(resources.threads, resources.threads,
           [&](int64_t i, int) { flops[static_cast<size_t>(i)] = table.peak(kSteps); });
  return std::accumulate(flops.begin(), flops.end(), 0.0);
}

double multiply_adds(bool single, int threads, const std::string& target) {
  double flops = 0;
  run_released(target, threads, [&](const Resources& resources) {
    flops = single ? multiply_adds_of<float>(resources) : multiply_adds_of<double>(resources);
  });
  return flops;
}

}  // namespace

void bind_build(py::module_& m) {
  m.attr("__version__") = DEPTHGAUGE_VERSION;
  m.def("build_info", &build_info);
  m.def("choose_target", [](const std::string& forced) { return std::string(name(choose_target(forced))); });
  m.def("multiply_adds", &multiply_adds, py::arg("single"), py::arg("threads"), py::arg("target") = "");
}

}  // namespace depthgauge
