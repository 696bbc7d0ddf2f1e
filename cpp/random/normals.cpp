#include "random/normals.hpp"

#include <algorithm>

#include "common/dispatch.hpp"
#include "common/thread_pool.hpp"

namespace depthgauge::random {

template <class T>
Kernels<T> kernels(Target target) {
  Kernels<T> table{};
  DG_DISPATCH(target, get_kernels(&table))
  return table;
}

template <class T>
void normals(const Request<T>& r, const Resources& resources) {
  // A task is a part of a matrix, or several matrices, of about this many numbers: a tenth of a millisecond.
  constexpr int64_t kTask = 512 * kLine<T>;
  const Kernels<T> table = kernels<T>(resources.target);
  const int64_t matrices = r.seed_count * r.layers;
  const int64_t parts = std::max<int64_t>((r.count + kTask - 1) / kTask, 1);
  const int64_t together = std::max<int64_t>(kTask / std::max<int64_t>(r.count, 1), 1);
  const int64_t tasks = (matrices + together - 1) / together * parts;
  if (r.count == 0) return;
  parallel(resources.threads, tasks, [&](int64_t task, int) {
    if (resources.stop()) return;
    const int64_t part = task % parts, first = task / parts * together;
    const int64_t from = part * kTask, count = std::min(kTask, r.count - from);
    for (int64_t i = first; i < std::min(matrices, first + together); ++i) {
      const Sequence sequence{r.seeds[i / r.layers], static_cast<uint32_t>(r.first_layer + i % r.layers), r.matrix};
      table.normals(sequence, from / kLine<T>, count, r.deviation, r.out + i * r.count + from);
    }
  });
}

template Kernels<float> kernels(Target);
template Kernels<double> kernels(Target);
template void normals(const Request<float>&, const Resources&);
template void normals(const Request<double>&, const Resources&);

}  // namespace depthgauge::random
