#pragma once

#include <pybind11/pybind11.h>

namespace depthgauge {

void bind_build(pybind11::module_& m);
void bind_spectra(pybind11::module_& m);
void bind_graded(pybind11::module_& m);
void bind_jacobian(pybind11::module_& m);
void bind_memory(pybind11::module_& m);
void bind_random(pybind11::module_& m);
void bind_stack(pybind11::module_& m);

}  // namespace depthgauge
