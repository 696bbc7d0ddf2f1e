// Jacobians of many examples, carried through a stack block by block.
#pragma once

#include <cstdint>
#include <vector>

#include "common/buffer.hpp"
#include "jacobian/kernels.hpp"
#include "stack/propagation.hpp"

namespace depthgauge::jacobian {

// Examples are numbered as by `Example`.  A Jacobian is 2^exponent times the transpose of what is kept,
// and is kept as one part, or with orders as the parts of the paths through 0, 1, ... branches.
template <class T>
class Walk {
 public:
  // Begins with identities, for that many examples in all.
  Walk(Target target, int64_t width, int64_t count, int64_t parts, bool orders);

  // Goes on through `blocks` layers of a stack from layer `first` on, given the tape of its forward pass.
  void advance(const stack::Stack<T>& stack, const stack::TapeArrays<T>& tape, int64_t first, int64_t blocks,
               const Resources& resources);

  // The same in pieces, for a walk without orders.  Refuses layers that it cannot pass.
  void check(const stack::Stack<T>& stack, int64_t first, int64_t blocks, Target target) const;
  // Takes some examples, from number `begin` on, through the first `blocks` layers of a stack that is theirs alone;
  // other threads may take others.
  void carry(int64_t begin, const stack::Stack<T>& part, const stack::TapeArrays<T>& tape, int64_t blocks,
             const Resources& resources);
  // Once every example has been taken.
  void count_passed(int64_t blocks) { passed_ += blocks; }

  // Jacobians [example][part][output][input], without their exponents.
  void copy(T* matrices, int64_t* exponents, const Resources& resources) const;
  void singular_values(T* values, int64_t* exponents, bool* converged, const Resources& resources) const;
  // Of the blocks passed, [block][example], with orders: |branch_scale J|^2 / width and |post'|^2 / width.
  const std::vector<double>& branch_squares() const { return branch_squares_; }
  const std::vector<double>& post_squares() const { return post_squares_; }

  int64_t width() const { return width_; }
  int64_t count() const { return count_; }
  int64_t parts() const { return parts_; }

 private:
  class Passage;
  Pieces<T> rows(int64_t example, int64_t part) const {
    return {data_.get() + (example * parts_ + part) * size_, row_, stack::kGroup<T>};
  }

  bool lost(int64_t example) const { return lost_[static_cast<size_t>(example)] != 0; }

  Target target_;
  Kernels<T> table_;
  int64_t width_, count_, parts_;
  bool orders_;
  int64_t row_, size_, passed_ = 0;
  Buffer<T> data_;
  std::vector<int64_t> exponents_;
  std::vector<char> lost_;  // whether an example had a NaN in a state; its Jacobian is NaN then
  std::vector<double> branch_squares_, post_squares_;
};

template <class T>
Kernels<T> kernels(Target target);

}  // namespace depthgauge::jacobian
