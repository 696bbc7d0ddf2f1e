// One instruction set and precision: DG_TARGET and DG_REAL are set by the build.
#include "jacobian/kernels.hpp"

#include "jacobian/passage.hpp"

namespace depthgauge::jacobian::DG_TARGET {

void get_kernels(Kernels<DG_REAL>* out) {
  out->row_size = row_size<DG_REAL>;
  out->memory = linearized_memory<DG_REAL>;
  out->scratch = passage_scratch<DG_REAL>;
  out->linearize = linearize<DG_REAL>;
  out->form = form_rows<DG_REAL>;
  out->pass = pass_rows<DG_REAL>;
  out->norm = post_rows<DG_REAL>;
  out->top = top_of_rows<DG_REAL>;
  out->scale = scale_rows<DG_REAL>;
}

}  // namespace depthgauge::jacobian::DG_TARGET
