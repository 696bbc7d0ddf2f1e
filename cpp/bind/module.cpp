// The extension's table of contents.
#include <pybind11/pybind11.h>

#include "bind/bind.hpp"

PYBIND11_MODULE(_core, m, pybind11::mod_gil_not_used()) {
  m.doc() = "The C++ kernels of depthgauge.  Private: use the package's functions.";
  depthgauge::bind_build(m);
  depthgauge::bind_graded(m);
  depthgauge::bind_jacobian(m);
  depthgauge::bind_memory(m);
  depthgauge::bind_random(m);
  depthgauge::bind_stack(m);
  depthgauge::bind_spectra(m);
}
