// One instruction set and precision: DG_TARGET and DG_REAL are set by the build.
#include "spectra/singular_kernels.hpp"

#include "spectra/bidiagonal_columns.hpp"
#include "spectra/bidiagonal_lanes.hpp"
#include "spectra/dqds.hpp"
#include "spectra/scan.hpp"

namespace {

template <class T>
void dqds(T* q, const T* e, int64_t n, int vectors, bool* converged, T* workspace) {
  static_assert(depthgauge::spectra::kDqdsVectors == 4);
  switch (vectors) {
    case 1: return dqds_lanes<T, 1>(q, e, n, converged, workspace);
    case 2: return dqds_lanes<T, 2>(q, e, n, converged, workspace);
    default: return dqds_lanes<T, 4>(q, e, n, converged, workspace);
  }
}

}  // namespace

namespace depthgauge::spectra::DG_TARGET {

void get_kernels(Kernels<DG_REAL>* out) {
  out->lanes = kWidth<DG_REAL>;
  out->scan = scan<DG_REAL>;
  out->side_by_side_workspace = side_by_side_workspace<DG_REAL>;
  out->side_by_side = side_by_side<DG_REAL>;
  out->column_stride = column_stride<DG_REAL>;
  out->pack_columns = pack_columns<DG_REAL>;
  out->reflect_column = reflect_column<DG_REAL>;
  out->sweep = sweep<DG_REAL>;
  out->reflect_row = reflect_row<DG_REAL>;
  out->keep_row = keep_row<DG_REAL>;
  out->dqds_workspace = dqds_workspace<DG_REAL>;
  out->dqds = dqds<DG_REAL>;
}

}  // namespace depthgauge::spectra::DG_TARGET
