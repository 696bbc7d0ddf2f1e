#include <cmath>
#include <optional>

#include "stack/plan.hpp"
#include "stack/pool.hpp"
#include "stack/quantiles.hpp"
#include "stack/work_queue.hpp"
#include "stack/weight_gradients.hpp"

namespace depthgauge::stack {
namespace {

// The vjp of one call, over some of the replicates.
template <class T>
class Vjp {
 public:
  Vjp(const Stack<T>& stack, const TapeArrays<T>& tape, int64_t probes, const Rows<T>& cotangent,
      const VjpResults<T>& results, const Resources& resources, const Kernels<T>& table,
      const std::vector<int64_t>& replicates)
      : stack_(stack),
        tape_(tape),
        probes_(probes),
        cotangent_(cotangent),
        results_(results),
        resources_(resources),
        table_(table),
        plan_(make_plan(stack, probes, resources.threads, replicates)),
        replicates_(replicates),
        units_(static_cast<int64_t>(plan_.units.size())),
        d_(stack.equation.width),
        gradients_(units_ * d_ * kGroup<T>),
        pools_(static_cast<size_t>((pauses() ? 1 : stack.depth + 1) * units_)),
        scratch_size_(table_.scratch(stack.equation, kMaxJobs)),
        scratch_(scratch_size_ * resources.threads) {
    if (results.weight_gradients) weights_.emplace(stack, tape, results, plan_, replicates, table, resources.threads);
  }

  void run() {
    if (pauses())
      run_by_layer();
    else
      run_through();
  }

 private:
  bool stopped() const { return resources_.stop(); }
  // Whether something looks at all groups of a layer, which then wait for each other.
  bool pauses() const { return results_.weight_gradients || !results_.quantiles.empty(); }
  // The sums of the gradient at state l, one a unit: kept for all states, or for the one that all groups wait at.
  Pool* pools_at(int64_t l) { return pools_.data() + (pauses() ? 0 : l * units_); }
  T* gradient(int64_t unit) const { return gradients_.get() + unit * d_ * kGroup<T>; }
  T* scratch(int worker) const { return scratch_.get() + worker * scratch_size_; }

  void run_through() {
    WorkQueue(plan_.batches, stack_.depth + 1)
        .run(resources_.threads, resources_.stop,
             [&](const Batch& batch, int64_t step, int worker) { make_gradients(batch, stack_.depth - step, worker); });
    if (stopped()) return;
    for (int64_t l = 0; l <= stack_.depth; ++l) reduce(l);
  }

  void run_by_layer() {
    for (int64_t l = stack_.depth; l >= 0 && !stopped(); --l) {
      run_layer(l, static_cast<int64_t>(plan_.batches.size()));
      if (!stopped()) reduce(l);
    }
    if (!stopped()) run_layer(-1, 0);
  }

  // While batches make the gradient at state l, threads that are done with theirs take the outer products of the block
  // that was passed before.
  void run_layer(int64_t l, int64_t batches) {
    const bool products = weights_ && l + 1 < stack_.depth;
    if (products) weights_->prepare(l + 1);
    parallel(resources_.threads, batches + (products ? weights_->tasks() : 0), [&](int64_t i, int worker) {
      if (i < batches)
        make_gradients(plan_.batches[static_cast<size_t>(i)], l, worker);
      else if (!stopped())
        weights_->multiply(i - batches, l + 1, scratch(worker), worker);
    });
    if (products && !stopped()) weights_->reduce(l + 1);
  }

  // The gradient at state l of some units, from the one after.
  void make_gradients(const Batch& batch, int64_t l, int worker) {
    if (l == stack_.depth)
      enter(batch);
    else
      pass_block(batch, l, worker);
    if (l > 0) return;
    for (int64_t i = batch.first; i < batch.last; ++i) {
      const Unit& unit = plan_.units[static_cast<size_t>(i)];
      write_group(gradient(i), d_, unit,
                  results_.input_gradient + (unit.probe * stack_.replicates + unit.replicate) * stack_.examples * d_);
    }
  }

  void enter(const Batch& batch) {
    Pool* const pools = pools_at(stack_.depth);
    for (int64_t i = batch.first; i < batch.last; ++i) {
      const Unit& unit = plan_.units[static_cast<size_t>(i)];
      read_group(cotangent_, unit.probe, unit.replicate, unit, d_, gradient(i));
      Moments moments;
      table_.moments(gradient(i), d_, unit.examples, &moments, pools + i, nullptr);
    }
  }

  void pass_block(const Batch& batch, int64_t l, int worker) {
    VjpJob<T> jobs[kMaxJobs];
    const int64_t count = batch.last - batch.first;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t i = batch.first + j;
      const Unit& unit = plan_.units[static_cast<size_t>(i)];
      jobs[j].state = state_of(stack_, tape_.states, unit, l);
      jobs[j].gradient = gradient(i);
      jobs[j].tape = tape_of(stack_, tape_, unit, l);
      jobs[j].weights = weights_ ? weights_->job(l, i) : nullptr;
      jobs[j].examples = unit.examples;
    }
    table_.vjp(stack_.equation, stack_.layer(batch.set, l, l - 1), jobs, count, scratch(worker), resources_.stop);
    Pool* const pools = pools_at(l) + batch.first;
    for (int64_t j = 0; j < count; ++j) pools[j] = jobs[j].pool;
  }

  void reduce(int64_t l) {
    const Pool* const pools = pools_at(l);
    for (const int64_t r : replicates_)
      for (int64_t p = 0; p < probes_; ++p) {
        const int64_t pr = p * stack_.replicates + r, first = plan_.first_unit[static_cast<size_t>(pr)];
        const int64_t at = pr * (stack_.depth + 1) + l, values = stack_.examples * d_;
        Pool pool;
        for (int64_t g = 0; g < stack_.groups(); ++g) merge(pool, pools[first + g]);
        results_.rms[at] = root_mean_square(pool, values);
        results_.max_abs[at] = values ? pool.max_abs : std::nan("");
        results_.nonfinite[at] = pool.nonfinite;
        if (!results_.quantiles.empty())
          magnitude_quantiles(gradient(first), d_, stack_.examples, results_.quantiles,
                              results_.gradient_quantiles + at * static_cast<int64_t>(results_.quantiles.size()));
      }
  }

  const Stack<T>& stack_;
  const TapeArrays<T>& tape_;
  const int64_t probes_;
  const Rows<T>& cotangent_;
  const VjpResults<T>& results_;
  const Resources& resources_;
  const Kernels<T>& table_;
  const Plan plan_;
  const std::vector<int64_t>& replicates_;
  const int64_t units_, d_;
  Buffer<T> gradients_;
  std::vector<Pool> pools_;
  const int64_t scratch_size_;
  Buffer<T> scratch_;
  std::optional<WeightGradients<T>> weights_;
};

}  // namespace

template <class T>
void vjp(const Stack<T>& stack, const TapeArrays<T>& tape, int64_t probes, const Rows<T>& cotangent,
         const VjpResults<T>& results, const Resources& resources) {
  const Kernels<T> table = kernels<T>(resources.target);
  for (const std::vector<int64_t>& replicates : replicate_blocks(stack, results)) {
    Vjp<T>(stack, tape, probes, cotangent, results, resources, table, replicates).run();
    if (resources.stop()) return;
  }
}

template void vjp(const Stack<float>&, const TapeArrays<float>&, int64_t, const Rows<float>&, const VjpResults<float>&,
                  const Resources&);
template void vjp(const Stack<double>&, const TapeArrays<double>&, int64_t, const Rows<double>&,
                  const VjpResults<double>&, const Resources&);

}  // namespace depthgauge::stack
