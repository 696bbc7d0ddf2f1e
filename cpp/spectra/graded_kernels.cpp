// One instruction set: DG_TARGET is set by the build.
#include "spectra/graded_kernels.hpp"

#include "spectra/graded_product.hpp"

namespace depthgauge::spectra::DG_TARGET {

void get_graded_kernels(GradedKernels* out) {
  out->memory = graded_memory;
  out->start = start_graded;
  out->multiply = multiply_graded;
  out->singular_values = graded_values;
}

}  // namespace depthgauge::spectra::DG_TARGET
