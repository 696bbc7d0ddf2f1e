// Jacobians of many examples, multiplied out block by block.
#pragma once

#include <cstdint>
#include <vector>

#include "common/buffer.hpp"
#include "jacobian/accumulator.hpp"
#include "jacobian/kernels.hpp"

namespace depthgauge::jacobian {

// Examples are numbered as by `GroupTape`.  A Jacobian is 2^exponent times the transpose of what is kept,
// and is kept as one part, or with orders as the parts of the paths through 0, 1, ... branches.
template <class T>
class JacobianAccumulator : public Accumulator {
 public:
  // Begins with identities, for that many examples in all.
  JacobianAccumulator(Target target, int64_t width, int64_t count, int64_t parts, bool orders);

  // Makes place for what is measured of so many more blocks.
  void reserve(int64_t blocks);
  // Takes every task's example through the blocks of its tape.
  static void advance(const std::vector<Task<T, JacobianAccumulator>>& tasks, int64_t blocks,
                      const Resources& resources);

  // Jacobians [example][part][output][input], without their exponents.
  void copy(T* matrices, int64_t* exponents, const Resources& resources) const;
  void singular_values(T* values, int64_t* exponents, bool* converged, const Resources& resources) const;
  // Of the blocks passed, [block][example], with orders: |branch_scale J|^2 / width and |post'|^2 / width.
  const std::vector<double>& branch_squares() const { return branch_squares_; }
  const std::vector<double>& post_squares() const { return post_squares_; }

  int64_t parts() const { return parts_; }

 private:
  class Advance;
  Tiles<T> rows(int64_t example, int64_t part) const {
    return {data_.get() + (example * parts_ + part) * size_, row_, stack::kGroup<T>};
  }

  Kernels<T> table_;
  int64_t parts_;
  bool orders_;
  int64_t row_, size_;
  Buffer<T> data_;
  std::vector<int64_t> exponents_;
  std::vector<char> lost_;  // whether an example had a NaN in a state; its Jacobian is NaN then
  std::vector<double> branch_squares_, post_squares_;
};

template <class T>
Kernels<T> kernels(Target target);

}  // namespace depthgauge::jacobian
