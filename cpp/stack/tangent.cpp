#include "stack/plan.hpp"

namespace depthgauge::stack {

template <class T>
void tangent(const Stack<T>& stack, const TapeArrays<T>& tape, int64_t probes, const Rows<T>& rows,
             const TangentResults<T>& results, const Resources& resources) {
  const Kernels<T> table = kernels<T>(resources.target);
  const Plan plan = make_plan(stack, probes, resources.threads, by_set(stack));
  const auto units = static_cast<int64_t>(plan.units.size());
  const int64_t d = stack.equation.width, states = stack.depth + 1;
  const int64_t scratch_size = table.scratch(stack.equation, kMaxJobs);
  Buffer<T> scratch(scratch_size * resources.threads);
  Buffer<T> tangents(units * d * kGroup<T>);
  std::vector<Pool> pools(static_cast<size_t>(states * units));

  parallel(resources.threads, static_cast<int64_t>(plan.batches.size()), [&](int64_t b, int worker) {
    const Batch& batch = plan.batches[static_cast<size_t>(b)];
    TangentJob<T> jobs[kMaxJobs];
    const int64_t count = batch.last - batch.first;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t i = batch.first + j;
      const Unit& unit = plan.units[static_cast<size_t>(i)];
      jobs[j].tangent = tangents.get() + i * d * kGroup<T>;
      jobs[j].examples = unit.examples;
      read_group(rows, unit.probe, unit.replicate, unit, d, jobs[j].tangent);
      Moments moments;
      table.moments(jobs[j].tangent, d, unit.examples, &moments, &pools[static_cast<size_t>(i)], nullptr);
    }
    for (int64_t l = 0; l < stack.depth && !resources.stop(); ++l) {
      for (int64_t j = 0; j < count; ++j) {
        const Unit& unit = plan.units[static_cast<size_t>(batch.first + j)];
        jobs[j].state = state_of(stack, tape.states, unit, l);
        jobs[j].tape = tape_of(stack, tape, unit, l);
      }
      table.tangent(stack.equation, stack.layer(batch.set, l, l + 1), jobs, count, scratch.get() + worker * scratch_size,
                    resources.stop);
      for (int64_t j = 0; j < count; ++j)
        pools[static_cast<size_t>((l + 1) * units + batch.first + j)] = jobs[j].pool;
    }
    for (int64_t j = 0; j < count; ++j) {
      const Unit& unit = plan.units[static_cast<size_t>(batch.first + j)];
      write_group(jobs[j].tangent, d, unit,
                  results.output + (unit.probe * stack.replicates + unit.replicate) * stack.examples * d);
    }
  });
  if (resources.stop()) return;
  for (int64_t pr = 0; pr < probes * stack.replicates; ++pr)
    for (int64_t l = 0; l < states; ++l) {
      Pool pool;
      for (int64_t g = 0; g < stack.groups(); ++g)
        merge(pool, pools[static_cast<size_t>(l * units + plan.first_unit[static_cast<size_t>(pr)] + g)]);
      results.rms[pr * states + l] = root_mean_square(pool, stack.examples * d);
    }
}

template void tangent(const Stack<float>&, const TapeArrays<float>&, int64_t, const Rows<float>&,
                      const TangentResults<float>&, const Resources&);
template void tangent(const Stack<double>&, const TapeArrays<double>&, int64_t, const Rows<double>&,
                      const TangentResults<double>&, const Resources&);

}  // namespace depthgauge::stack
