// The same Jacobians as products that lose nothing to what is large.
#pragma once

#include <cstdint>
#include <vector>

#include "common/buffer.hpp"
#include "jacobian/kernels.hpp"
#include "spectra/graded_kernels.hpp"
#include "stack/propagation.hpp"

namespace depthgauge::jacobian {

template <class T>
class GradedWalk {
 public:
  GradedWalk(Target target, int64_t width, int64_t hidden, int64_t count);

  // As `Walk::advance`.
  void advance(const stack::Stack<T>& stack, const stack::TapeArrays<T>& tape, int64_t first, int64_t blocks,
               const Resources& resources);

  // Natural logs, [example][width], descending; NaN of a Jacobian with a NaN or an infinity.
  void log_singular_values(double* logs, const Resources& resources);

  int64_t width() const { return width_; }
  int64_t count() const { return count_; }

 private:
  bool multiply(int64_t example, const stack::Equation& eq, const Linearized<T>& at, const Pieces<T>& product,
                const Resources& resources);

  Target target_;
  Kernels<T> table_;
  spectra::GradedKernels graded_;
  int64_t width_, hidden_, count_, passed_ = 0;
  spectra::GradedSizes sizes_;
  int64_t bytes_;
  Buffer<char> memory_;
  std::vector<spectra::GradedProduct> products_;
  std::vector<char> finite_;
};

}  // namespace depthgauge::jacobian
