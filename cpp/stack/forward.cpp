#include <algorithm>

#include "stack/forward_statistics.hpp"
#include "stack/work_queue.hpp"

namespace depthgauge::stack {
namespace {

// The forward pass of one call.  States are made a segment of layers at a time: within it every group goes on by
// itself, and then the statistics of all groups are put together in their fixed order.
template <class T>
class Forward {
 public:
  Forward(const Stack<T>& stack, const Rows<T>& rows, const int64_t* x_of, const TapeArrays<T>& tape,
          const ForwardResults<T>& results, const Resources& resources)
      : stack_(stack),
        rows_(rows),
        x_of_(x_of),
        tape_(tape),
        results_(results),
        resources_(resources),
        table_(kernels<T>(resources.target)),
        plan_(make_plan(stack, 1, resources.threads, by_set(stack))),
        units_(static_cast<int64_t>(plan_.units.size())),
        d_(stack.equation.width),
        ring_(tape.states ? 0 : 2 * units_ * d_ * kGroup<T>),
        moments_(units_),
        statistics_(stack, plan_, results, resources.threads),
        scratch_size_(table_.scratch(stack.equation, kMaxJobs)),
        scratch_(scratch_size_ * resources.threads) {}

  void run() {
    for (int64_t first = 0; first <= stack_.depth; first += statistics_.segment()) {
      const int64_t count = std::min(statistics_.segment(), stack_.depth + 1 - first);
      statistics_.begin_segment();
      WorkQueue(plan_.batches, count)
          .run(resources_.threads, resources_.stop,
               [&](const Batch& batch, int64_t slot, int worker) { make_states(batch, first + slot, slot, worker); });
      if (resources_.stop()) return;
      parallel(resources_.threads, count * stack_.replicates, [&](int64_t i, int worker) {
        const int64_t slot = i / stack_.replicates, r = i % stack_.replicates, l = first + slot;
        statistics_.reduce_state(r, l, slot, states(r, l), worker);
        if (l > 0) statistics_.reduce_block(r, l - 1, slot);
      });
    }
  }

 private:
  T* state(int64_t unit, int64_t l) const {
    if (tape_.states) return state_of(stack_, tape_.states, plan_.units[static_cast<size_t>(unit)], l);
    return ring_.get() + ((l % 2) * units_ + unit) * d_ * kGroup<T>;
  }

  // All groups of a replicate, which follow each other.
  const T* states(int64_t replicate, int64_t l) const {
    return units_ ? state(plan_.first_unit[static_cast<size_t>(replicate)], l) : nullptr;
  }

  // State l of some units, from the one before; the statistics of it and of the block before it go to a slot.
  void make_states(const Batch& batch, int64_t l, int64_t slot, int worker) {
    if (l == 0)
      enter(batch);
    else
      pass_block(batch, l - 1, slot, worker);
    if (l < stack_.depth) return;
    for (int64_t i = batch.first; i < batch.last; ++i) {
      const Unit& unit = plan_.units[static_cast<size_t>(i)];
      write_group(state(i, l), d_, unit, results_.output + unit.replicate * stack_.examples * d_);
    }
  }

  void enter(const Batch& batch) {
    for (int64_t i = batch.first; i < batch.last; ++i) {
      const Unit& unit = plan_.units[static_cast<size_t>(i)];
      T* h = state(i, 0);
      read_group(rows_, 0, x_of_[unit.replicate], unit, d_, h);
      table_.moments(h, d_, unit.examples, moments_.get() + i, statistics_.state_pool(0, i), statistics_.totals(0, i));
    }
  }

  void pass_block(const Batch& batch, int64_t l, int64_t slot, int worker) {
    ForwardJob<T> jobs[kMaxJobs];
    const int64_t count = batch.last - batch.first;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t i = batch.first + j;
      const Unit& unit = plan_.units[static_cast<size_t>(i)];
      ForwardJob<T>& job = jobs[j];
      job.state = state(i, l);
      job.next = state(i, l + 1);
      job.moments = moments_.get() + i;
      job.tape = tape_.states ? tape_of(stack_, tape_, unit, l) : Tape<T>{};
      job.abs_derivative = statistics_.abs_derivative(i);
      job.totals = statistics_.totals(slot, i);
      job.unit_live = statistics_.unit_live(slot, unit.replicate);
      job.examples = unit.examples;
    }
    table_.forward(stack_.equation, stack_.layer(batch.set, l, l + 1), jobs, count,
                   scratch_.get() + worker * scratch_size_, resources_.stop);
    for (int64_t j = 0; j < count; ++j) statistics_.keep(slot, batch.first + j, jobs[j]);
  }

  const Stack<T>& stack_;
  const Rows<T>& rows_;
  const int64_t* x_of_;
  const TapeArrays<T>& tape_;
  const ForwardResults<T>& results_;
  const Resources& resources_;
  const Kernels<T> table_;
  const Plan plan_;
  const int64_t units_, d_;
  Buffer<T> ring_;
  Buffer<Moments> moments_;
  ForwardStatistics<T> statistics_;
  const int64_t scratch_size_;
  Buffer<T> scratch_;
};

}  // namespace

template <class T>
void forward(const Stack<T>& stack, const Rows<T>& rows, const int64_t* x_of, const TapeArrays<T>& tape,
             const ForwardResults<T>& results, const Resources& resources) {
  Forward<T>(stack, rows, x_of, tape, results, resources).run();
}

template void forward(const Stack<float>&, const Rows<float>&, const int64_t*, const TapeArrays<float>&,
                      const ForwardResults<float>&, const Resources&);
template void forward(const Stack<double>&, const Rows<double>&, const int64_t*, const TapeArrays<double>&,
                      const ForwardResults<double>&, const Resources&);

}  // namespace depthgauge::stack
