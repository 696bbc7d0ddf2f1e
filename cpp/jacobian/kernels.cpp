// One instruction set and precision: DG_TARGET and DG_REAL are set by the build.
#include "jacobian/kernels.hpp"

#include "jacobian/advance_rows.hpp"

namespace depthgauge::jacobian::DG_TARGET {

void get_kernels(Kernels<DG_REAL>* out) {
  out->row_size = row_size<DG_REAL>;
  out->block_workspace = block_workspace<DG_REAL>;
  out->row_workspace = row_workspace<DG_REAL>;
  out->linearize = linearize<DG_REAL>;
  out->form = form_rows<DG_REAL>;
  out->advance = advance_rows<DG_REAL>;
  out->norm = normalize_rows<DG_REAL>;
  out->top = top_of_rows<DG_REAL>;
  out->scale = scale_rows<DG_REAL>;
}

}  // namespace depthgauge::jacobian::DG_TARGET
