#include "jacobian/jacobian_accumulator.hpp"

#include <algorithm>

#include "common/dispatch.hpp"
#include "common/thread_pool.hpp"
#include "spectra/singular.hpp"

namespace depthgauge::jacobian {

template <class T>
JacobianAccumulator<T>::JacobianAccumulator(Target target, int64_t width, int64_t count, int64_t parts, bool orders)
    : Accumulator(target, width, count),
      table_(kernels<T>(target)),
      parts_(parts),
      orders_(orders),
      row_(table_.row_size(width)),
      size_(width * row_),
      data_(count * parts * size_),
      exponents_(static_cast<size_t>(count)),
      lost_(static_cast<size_t>(count)) {
  std::fill_n(data_.get(), count * parts * size_, T(0));
  for (int64_t n = 0; n < count; ++n)
    for (int64_t k = 0; k < width; ++k) rows(n, 0).data[k * row_ + k] = 1;
}

template <class T>
void JacobianAccumulator<T>::reserve(int64_t blocks) {
  if (!orders_) return;
  const auto size = static_cast<size_t>((passed_ + blocks) * count_);
  branch_squares_.resize(size);
  post_squares_.resize(size);
}

template <class T>
void JacobianAccumulator<T>::copy(T* matrices, int64_t* exponents, const Resources& resources) const {
  std::copy(exponents_.begin(), exponents_.end(), exponents);
  const int64_t d = width_;
  parallel(resources.threads, count_ * parts_, [&](int64_t i, int) {
    if (resources.stop()) return;
    const T* const from = data_.get() + i * size_;
    T* const to = matrices + i * d * d;
    constexpr int64_t kSquare = 64 / static_cast<int64_t>(sizeof(T));
    for (int64_t r0 = 0; r0 < d; r0 += kSquare)
      for (int64_t c0 = 0; c0 < d; c0 += kSquare)
        for (int64_t r = r0; r < std::min(r0 + kSquare, d); ++r)
          for (int64_t c = c0; c < std::min(c0 + kSquare, d); ++c) to[r * d + c] = from[c * row_ + r];
  });
}

template <class T>
void JacobianAccumulator<T>::singular_values(T* values, int64_t* exponents, bool* converged,
                                             const Resources& resources) const {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const spectra::Batch batch{reinterpret_cast<const char*>(data_.get()),
                             {{count_ * parts_}, {size_ * kSize}},
                             width_,
                             width_,
                             row_ * kSize,
                             kSize};
  spectra::singular_values(batch, values, exponents, converged, resources);
  for (int64_t i = 0; i < count_ * parts_; ++i) exponents[i] += exponents_[static_cast<size_t>(i / parts_)];
}

template <class T>
Kernels<T> kernels(Target target) {
  Kernels<T> table{};
  DG_DISPATCH(target, get_kernels(&table))
  return table;
}

#define DG_INSTANTIATE(T)                                                                             \
  template JacobianAccumulator<T>::JacobianAccumulator(Target, int64_t, int64_t, int64_t, bool);      \
  template void JacobianAccumulator<T>::reserve(int64_t);                                             \
  template void JacobianAccumulator<T>::copy(T*, int64_t*, const Resources&) const;                   \
  template void JacobianAccumulator<T>::singular_values(T*, int64_t*, bool*, const Resources&) const; \
  template Kernels<T> kernels<T>(Target);
DG_INSTANTIATE(float)
DG_INSTANTIATE(double)
#undef DG_INSTANTIATE

}  // namespace depthgauge::jacobian
