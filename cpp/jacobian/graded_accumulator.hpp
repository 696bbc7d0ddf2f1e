// The same Jacobians as products that lose nothing to what is large.
#pragma once

#include <cstdint>
#include <vector>

#include "common/buffer.hpp"
#include "jacobian/accumulator.hpp"
#include "jacobian/kernels.hpp"
#include "spectra/graded_kernels.hpp"

namespace depthgauge::jacobian {

template <class T>
class GradedAccumulator : public Accumulator {
 public:
  GradedAccumulator(Target target, int64_t width, int64_t hidden, int64_t count);

  // As those of `JacobianAccumulator`.
  void check(const stack::Stack<T>& stack, Target target) const;
  void reserve(int64_t) {}
  static void advance(const std::vector<Task<T, GradedAccumulator>>& tasks, int64_t blocks, const Resources& resources);

  // Natural logs, [example][width], descending; NaN of a Jacobian with a NaN or an infinity.
  void log_singular_values(double* logs, const Resources& resources);

 private:
  bool multiply(int64_t example, const stack::Equation& eq, const Linearized<T>& at, const Tiles<T>& product,
                const Stop& stop);

  Kernels<T> table_;
  spectra::GradedKernels graded_;
  int64_t hidden_;
  spectra::GradedSizes sizes_;
  int64_t bytes_;
  Buffer<char> memory_;
  std::vector<spectra::GradedProduct> products_;
  std::vector<char> finite_;
};

}  // namespace depthgauge::jacobian
