#include "jacobian/walks.hpp"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "common/thread_pool.hpp"
#include "jacobian/example.hpp"

namespace depthgauge::jacobian {
namespace {

// Weights of one set that are passed at a time.
constexpr int64_t kWeightBytes = 2 << 20;

// One group of examples of a stack as a stack by itself, from layer `first` on.
template <class T>
stack::Stack<T> part_of(const stack::Stack<T>& whole, int64_t replicate, int64_t group, int64_t first) {
  stack::Stack<T> part = whole;
  part.replicates = 1;
  part.examples = std::min<int64_t>(stack::kGroup<T>, whole.examples - group * stack::kGroup<T>);
  part.set_of += replicate;
  part.branch_scale += first;
  part.skip_scale += first;
  // The number of layers stays, being the distance from set to set.
  for (stack::Field<T>& field : part.fields)
    if (field.data) field.data += first * field.size;
  return part;
}

// Memory in which one group passes some layers, of any of the stacks.
template <class T>
class Room {
 public:
  Room(const stack::Kernels<T>& table, const std::vector<Traveler<T>>& travelers, int64_t layers)
      : layers_(layers),
        tape_(tape_size(travelers, layers)),
        scratch_(table.scratch(travelers[0].stack.equation, 1)),
        totals_(travelers[0].stack.equation.width),
        live_(travelers[0].stack.equation.hidden) {}

  // Takes the group forward through `count` layers of its stack, and its states with it.
  stack::TapeArrays<T> forward(const stack::Kernels<T>& table, const stack::Stack<T>& part, int64_t count, T* states,
                               const Stop& stop) {
    const stack::Equation& eq = part.equation;
    stack::TapeArrays<T> tape;
    lay_out(part, layers_, tape_.get(), &tape);
    const stack::Unit unit{0, 0, 0, static_cast<int>(part.examples)};
    constexpr auto size = static_cast<int64_t>(sizeof(T));
    const stack::Rows<T> rows{reinterpret_cast<const char*>(states), {0, 0, eq.width * size, size}};
    stack::read_group(rows, 0, 0, unit, eq.width, tape.states);
    stack::Moments moments;
    stack::ForwardJob<T> job{};
    table.moments(tape.states, eq.width, unit.examples, &moments, &job.next_pool, totals_.get());
    job.moments = &moments;
    job.totals = totals_.get();
    job.unit_live = live_.get();
    job.examples = unit.examples;
    for (int64_t l = 0; l < count; ++l) {
      job.state = stack::state_of(part, tape.states, unit, l);
      job.next = stack::state_of(part, tape.states, unit, l + 1);
      job.tape = stack::tape_of(part, tape, unit, l);
      table.forward(eq, part.layer(part.set_of[0], l, l + 1 < count ? l + 1 : -1), &job, 1, scratch_.get(), stop);
    }
    stack::write_group(stack::state_of(part, tape.states, unit, count), eq.width, unit, states);
    return tape;
  }

 private:
  // Cuts the tape of a group from `memory`, and returns how much of it that takes.
  static int64_t lay_out(const stack::Stack<T>& part, int64_t layers, T* memory, stack::TapeArrays<T>* tape) {
    stack::Stack<T> some = part;
    some.depth = layers;
    const stack::TapeSizes sizes = stack::tape_sizes(some);
    int64_t used = 0;
    const auto take = [&](int64_t elements) {
      T* const from = memory && elements ? memory + used : nullptr;
      used += (elements + kLine - 1) / kLine * kLine;
      return from;
    };
    tape->states = take(sizes.states);
    for (int place = 0; place < stack::kPlaces; ++place)
      tape->factors[place] = reinterpret_cast<stack::NormFactors<T>*>(take(sizes.factors[place]));
    tape->branch = take(sizes.branch);
    tape->sum = take(sizes.sum);
    tape->positive = reinterpret_cast<uint16_t*>(take(sizes.positive));
    tape->derivative = take(sizes.derivative);
    tape->gate_value = take(sizes.gate_value);
    return used;
  }

  static int64_t tape_size(const std::vector<Traveler<T>>& travelers, int64_t layers) {
    int64_t most = 0;
    stack::TapeArrays<T> none;
    for (const Traveler<T>& t : travelers)
      most = std::max(most, lay_out(part_of(t.stack, 0, 0, 0), layers, nullptr, &none));
    return most;
  }

  static constexpr int64_t kLine = stack::kGroup<T>;
  int64_t layers_;
  Buffer<T> tape_, scratch_;
  Buffer<double> totals_;
  Buffer<unsigned char> live_;
};

// Layers whose weights together are few enough.
template <class T>
int64_t layers_at_once(const stack::Stack<T>& stack) {
  int64_t size = 0;
  for (const int field : {stack::kUp, stack::kDown, stack::kGate})
    if (stack.fields[field].data) size += stack.fields[field].size * static_cast<int64_t>(sizeof(T));
  return std::max<int64_t>(kWeightBytes / std::max<int64_t>(size, 1), 1);
}

}  // namespace

template <class T>
void advance_walks(const std::vector<Traveler<T>>& travelers, int64_t first, int64_t blocks,
                   const Resources& resources) {
  if (travelers.empty() || blocks == 0) return;
  const stack::Stack<T>& one = travelers[0].stack;
  for (const Traveler<T>& t : travelers) {
    t.walk->check(t.stack, first, blocks, resources.target);
    const stack::Equation& eq = t.stack.equation;
    if (t.stack.replicates != one.replicates || t.stack.examples != one.examples || eq.width != one.equation.width ||
        eq.hidden != one.equation.hidden || eq.branch != one.equation.branch)
      throw std::invalid_argument("stacks of walks side by side have the same shapes");
  }
  const auto count = static_cast<int64_t>(travelers.size());
  const int64_t tasks = one.replicates * one.groups() * count;
  // Where there are too few tasks, threads share each of them.
  const bool apart = tasks >= 2 * resources.threads;
  const int threads = apart ? resources.threads : 1;
  const Resources each{resources.target, apart ? 1 : resources.threads, resources.stop};
  const stack::Kernels<T> table = stack::kernels<T>(resources.target);
  const int64_t layers = std::min(layers_at_once(one), blocks);
  std::vector<std::unique_ptr<Room<T>>> rooms;
  for (int i = 0; i < threads; ++i) rooms.push_back(std::make_unique<Room<T>>(table, travelers, layers));
  for (int64_t from = first; from < first + blocks && !resources.stop(); from += layers) {
    const int64_t some = std::min(layers, first + blocks - from);
    parallel(threads, tasks, [&](int64_t i, int worker) {
      if (resources.stop()) return;
      const Traveler<T>& t = travelers[static_cast<size_t>(i % count)];
      const int64_t replicate = i / count / one.groups(), group = i / count % one.groups();
      const stack::Stack<T> part = part_of(t.stack, replicate, group, from);
      const int64_t example = replicate * one.examples + group * stack::kGroup<T>;
      const stack::TapeArrays<T> tape = rooms[static_cast<size_t>(worker)]->forward(
          table, part, some, t.states + example * part.equation.width, resources.stop);
      t.walk->carry(example, part, tape, some, each);
    });
    for (const Traveler<T>& t : travelers) t.walk->count_passed(some);
  }
}

template void advance_walks(const std::vector<Traveler<float>>&, int64_t, int64_t, const Resources&);
template void advance_walks(const std::vector<Traveler<double>>&, int64_t, int64_t, const Resources&);

}  // namespace depthgauge::jacobian
