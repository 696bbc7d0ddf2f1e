#include "stack/plan.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "common/dispatch.hpp"

namespace depthgauge::stack {

template <class T>
int64_t Stack<T>::field_size(int field) const {
  const int64_t d = equation.width, m = equation.hidden;
  switch (field) {
    case kUp:
    case kDown:
    case kGate: return d * m;
    case kBUp:
    case kBGate: return m;
    default: return d;
  }
}

template <class T>
Layer<T> Stack<T>::layer(int64_t set, int64_t index, int64_t next) const {
  const auto in_layer = [&](int name, int64_t l) -> const T* {
    const Field<T>& f = fields[name];
    return f.data && l >= 0 && l < depth ? f.data + (f.index[set] * depth + l) * f.size : nullptr;
  };
  const auto at = [&](int name) { return in_layer(name, index); };
  Layer<T> found{};
  found.up = at(kUp);
  found.down = at(kDown);
  found.gate = at(kGate);
  found.b_up = at(kBUp);
  found.b_down = at(kBDown);
  found.b_gate = at(kBGate);
  for (int place = 0; place < kPlaces; ++place) {
    found.gain[place] = at(kGain + place);
    found.shift[place] = at(kShift + place);
  }
  found.next_up = in_layer(kUp, next);
  found.next_down = in_layer(kDown, next);
  found.next_gate = in_layer(kGate, next);
  found.branch_scale = branch_scale[index];
  found.skip_scale = skip_scale[index];
  return found;
}

template <class T>
std::vector<int64_t> by_set(const Stack<T>& stack) {
  std::vector<int64_t> order(static_cast<size_t>(stack.replicates));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return stack.set_of[a] < stack.set_of[b]; });
  return order;
}

template <class T>
Plan make_plan(const Stack<T>& stack, int64_t probes, int threads, const std::vector<int64_t>& replicates) {
  Plan plan;
  plan.first_unit.assign(static_cast<size_t>(probes * stack.replicates), 0);
  const int64_t groups = stack.groups();
  for (const int64_t r : replicates)
    for (int64_t p = 0; p < probes; ++p) {
      plan.first_unit[static_cast<size_t>(p * stack.replicates + r)] = static_cast<int64_t>(plan.units.size());
      for (int64_t g = 0; g < groups; ++g)
        plan.units.push_back({p, r, g, static_cast<int>(std::min<int64_t>(kGroup<T>, stack.examples - g * kGroup<T>))});
    }
  // As many batches as threads, or a multiple of that, so that all threads finish together.
  const int64_t total = static_cast<int64_t>(plan.units.size());
  int64_t batches = (total + kMaxJobs - 1) / kMaxJobs;
  batches = (batches + threads - 1) / threads * threads;
  const int64_t limit = batches ? (total + batches - 1) / batches : 1;
  for (int64_t first = 0; first < total;) {
    const auto set_at = [&](int64_t i) { return stack.set_of[plan.units[static_cast<size_t>(i)].replicate]; };
    const int64_t set = set_at(first);
    int64_t last = first + 1;
    while (last < total && last - first < limit && set_at(last) == set) ++last;
    plan.batches.push_back({first, last, set});
    first = last;
  }
  return plan;
}

template <class T>
Kernels<T> kernels(Target target) {
  Kernels<T> table{};
  DG_DISPATCH(target, get_kernels(&table))
  return table;
}

#define DG_INSTANTIATE(T)                                                              \
  template struct Stack<T>;                                                            \
  template std::vector<int64_t> by_set(const Stack<T>&);                               \
  template Plan make_plan(const Stack<T>&, int64_t, int, const std::vector<int64_t>&); \
  template Kernels<T> kernels<T>(Target);
DG_INSTANTIATE(float)
DG_INSTANTIATE(double)
#undef DG_INSTANTIATE

}  // namespace depthgauge::stack
