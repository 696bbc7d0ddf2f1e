#include "stack/plan.hpp"
#include "stack/pool.hpp"
#include "stack/work_queue.hpp"

namespace depthgauge::stack {

template <class T>
void jvp(const Stack<T>& stack, const TapeArrays<T>& tape, int64_t probes, const Rows<T>& rows,
         const JvpResults<T>& results, const Resources& resources) {
  const Kernels<T> table = kernels<T>(resources.target);
  const Plan plan = make_plan(stack, probes, resources.threads, by_set(stack));
  const auto units = static_cast<int64_t>(plan.units.size());
  const int64_t d = stack.equation.width, states = stack.depth + 1;
  const int64_t scratch_size = table.scratch(stack.equation, kMaxJobs);
  Buffer<T> scratch(scratch_size * resources.threads);
  Buffer<T> tangents(units * d * kGroup<T>);
  std::vector<Pool> pools(static_cast<size_t>(states * units));

  // Tangents at state l of some units, from those at the one before.
  const auto make_tangents = [&](const Batch& batch, int64_t l, int worker) {
    JvpJob<T> jobs[kMaxJobs];
    for (int64_t i = batch.first; i < batch.last; ++i) {
      const Unit& unit = plan.units[static_cast<size_t>(i)];
      JvpJob<T>& job = jobs[i - batch.first];
      job.tangent = tangents.get() + i * d * kGroup<T>;
      job.examples = unit.examples;
      if (l > 0) {
        job.state = state_of(stack, tape.states, unit, l - 1);
        job.tape = tape_of(stack, tape, unit, l - 1);
      } else {
        read_group(rows, unit.probe, unit.replicate, unit, d, job.tangent);
        Moments moments;
        table.moments(job.tangent, d, unit.examples, &moments, &job.pool, nullptr);
      }
    }
    if (l > 0)
      table.jvp(stack.equation, stack.layer(batch.set, l - 1, l), jobs, batch.last - batch.first,
                scratch.get() + worker * scratch_size, resources.stop);
    for (int64_t i = batch.first; i < batch.last; ++i) {
      const Unit& unit = plan.units[static_cast<size_t>(i)];
      const JvpJob<T>& job = jobs[i - batch.first];
      pools[static_cast<size_t>(l * units + i)] = job.pool;
      if (l == stack.depth)
        write_group(job.tangent, d, unit,
                    results.output + (unit.probe * stack.replicates + unit.replicate) * stack.examples * d);
    }
  };
  WorkQueue(plan.batches, states).run(resources.threads, resources.stop, make_tangents);
  if (resources.stop()) return;
  for (int64_t pr = 0; pr < probes * stack.replicates; ++pr)
    for (int64_t l = 0; l < states; ++l) {
      Pool pool;
      for (int64_t g = 0; g < stack.groups(); ++g)
        merge(pool, pools[static_cast<size_t>(l * units + plan.first_unit[static_cast<size_t>(pr)] + g)]);
      results.rms[pr * states + l] = root_mean_square(pool, stack.examples * d);
    }
}

template void jvp(const Stack<float>&, const TapeArrays<float>&, int64_t, const Rows<float>&, const JvpResults<float>&,
                  const Resources&);
template void jvp(const Stack<double>&, const TapeArrays<double>&, int64_t, const Rows<double>&,
                  const JvpResults<double>&, const Resources&);

}  // namespace depthgauge::stack
