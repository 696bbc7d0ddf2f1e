// One instruction set and precision: DG_TARGET and DG_REAL are set by the build.
#include "random/normal_kernels.hpp"

#include "random/box_muller.hpp"
#include "random/philox.hpp"

namespace {

using depthgauge::random::kLine;
using depthgauge::random::Sequence;

// One line of numbers, each already times `deviation`.
DG_INLINE void line_of(const Keys& keys, const Counter<double>& counter, double deviation, double* out) {
  Wide c[4][kVectors];
  counter.load(c, 0);
  philox(c, keys);
  Pair<double> p = pair(radius_uniform(c[0], c[1]), angle(c[2], c[3]));
  const Row<double> scale = splat_row(deviation);
  store_row(out, p.a * scale);
  store_row(out + kLanes<double>, p.b * scale);
}

DG_INLINE void line_of(const Keys& keys, const Counter<float>& counter, float deviation, float* out) {
  Words c[4];
  for (int v = 0; v < kVectors; ++v) {
    Wide even_odd[4][2];
    counter.load(even_odd, 2 * v);
    philox(even_odd, keys);
    for (int word = 0; word < 4; ++word) c[word].v[v] = side_by_side(even_odd[word][0], even_odd[word][1]);
  }
  const Row<float> scale = splat_row(deviation);
  for (int half = 0; half < 2; ++half) {
    Pair<float> p = pair(radius_uniform(c[2 * half]), angle(c[2 * half + 1]));
    store_row(out + 2 * half * kLanes<float>, p.a * scale);
    store_row(out + (2 * half + 1) * kLanes<float>, p.b * scale);
  }
}

template <class T>
void normals(const Sequence& sequence, int64_t line, int64_t count, T deviation, T* out) {
  const Keys keys(sequence.seed);
  Counter<T> counter(line, sequence.layer, sequence.matrix);
  int64_t i = 0;
  for (; i + kLine<T> <= count; i += kLine<T>, counter.next()) line_of(keys, counter, deviation, out + i);
  if (i < count) {
    T last[kLine<T>];
    line_of(keys, counter, deviation, last);
    __builtin_memcpy(out + i, last, static_cast<size_t>(count - i) * sizeof(T));
  }
}

}  // namespace

namespace depthgauge::random::DG_TARGET {

void get_kernels(Kernels<DG_REAL>* out) { out->normals = normals<DG_REAL>; }

}  // namespace depthgauge::random::DG_TARGET
