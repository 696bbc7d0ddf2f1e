// How this extension was built, and what it finds on this machine.
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "bind/bind.hpp"
#include "common/target.hpp"
#include "common/thread_pool.hpp"
#include "stack/transport.hpp"

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

template <class T>
double peak_of(Target target, int threads) {
  const stack::Kernels<T> table = stack::kernels<T>(target);
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<double> flops(static_cast<size_t>(threads));
    const auto start = std::chrono::steady_clock::now();
    parallel(threads, threads, [&](int64_t i, int) { flops[static_cast<size_t>(i)] = table.peak(4000000); });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    double total = 0;
    for (const double f : flops) total += f;
    best = std::max(best, total / seconds / 1e9);
  }
  return best;
}

double fma_peak_gflops(bool single, int threads, const std::string& target) {
  if (threads < 1) throw std::invalid_argument("threads must be at least 1");
  const Target chosen = choose_target(target);
  py::gil_scoped_release release;
  return single ? peak_of<float>(chosen, threads) : peak_of<double>(chosen, threads);
}

}  // namespace

void bind_build(py::module_& m) {
  m.attr("__version__") = DEPTHGAUGE_VERSION;
  m.def("build_info", &build_info);
  m.def("choose_target", [](const std::string& forced) { return std::string(name(choose_target(forced))); });
  m.def("fma_peak_gflops", &fma_peak_gflops, py::arg("single"), py::arg("threads"), py::arg("target") = "");
}

}  // namespace depthgauge
