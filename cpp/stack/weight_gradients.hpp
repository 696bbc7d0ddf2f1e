// The gradients of a stack's weights: outer products over all groups of a layer, and sums over what the groups leave.
#pragma once

#include <memory>
#include <vector>

#include "stack/gradient_store.hpp"
#include "stack/plan.hpp"

namespace depthgauge::stack {

// Those of some replicates of one call.  While the groups go back through one block, `tasks` of the block that they
// went through before can be done, on any thread; `prepare` comes before them and `reduce` after.
template <class T>
class WeightGradients {
 public:
  WeightGradients(const Stack<T>& stack, const TapeArrays<T>& tape, const VjpResults<T>& results, const Plan& plan,
                  const std::vector<int64_t>& replicates, const Kernels<T>& table, int threads);

  // Where the kernel leaves what is needed of a unit in layer l.
  GradientJob<T>* job(int64_t l, int64_t unit) const { return store(l).job(unit); }

  void prepare(int64_t l);
  int64_t tasks() const { return static_cast<int64_t>(blocks_.size()); }
  // Some rows of one gradient of layer l; `scratch` is as large as the kernels ask for.
  void multiply(int64_t task, int64_t l, T* scratch, int worker);
  void reduce(int64_t l);

 private:
  // Units [first, last) whose weight gradients are added up: those of a weight set, or of a replicate alone.
  struct Owner {
    int64_t index, first, last;
  };
  // Rows [first, last) of the gradient of one matrix.
  struct RowBlock {
    int64_t owner;
    int field;
    int64_t first, last;
  };

  void find_owners();
  void divide_rows();
  GradientStore<T>& store(int64_t l) const { return *stores_[l % 2]; }
  int64_t rows(int field) const { return field == kDown ? stack_.equation.hidden : stack_.equation.width; }
  int64_t columns(int field) const { return field == kDown ? stack_.equation.width : stack_.equation.hidden; }
  OuterProduct<T> product_of(const RowBlock& block, int64_t l) const;
  void reduce_matrix_rms(int64_t l);
  void reduce_vector(const Owner& owner, int field, int64_t l);
  void reduce_scales(int64_t l);

  const Stack<T>& stack_;
  const TapeArrays<T>& tape_;
  const VjpResults<T>& results_;
  const Plan& plan_;
  const std::vector<int64_t>& replicates_;
  const Kernels<T>& table_;
  std::unique_ptr<GradientStore<T>> stores_[2];  // of even and odd layers
  std::vector<Owner> owners_;
  std::vector<RowBlock> blocks_;
  std::vector<Pool> block_pools_;
  std::vector<int> examples_;
  std::vector<const T*> left_[3];
  const int64_t block_size_;
  Buffer<T> block_values_;  // of each thread, where only the rms is asked for
};

// Replicates to take at a time, so that what is kept of every group stays within bounds.
template <class T>
std::vector<std::vector<int64_t>> replicate_blocks(const Stack<T>& stack, const VjpResults<T>& results);

}  // namespace depthgauge::stack
