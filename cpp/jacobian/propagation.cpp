#include "jacobian/propagation.hpp"

#include <algorithm>
#include <stdexcept>

#include "common/buffer.hpp"
#include "common/thread_pool.hpp"
#include "jacobian/graded_accumulator.hpp"
#include "jacobian/group_tape.hpp"
#include "jacobian/jacobian_accumulator.hpp"

namespace depthgauge::jacobian {
namespace {

// Tapes in memory at once, which are at least those of one group and one layer.
constexpr int64_t kTapeBytes = 8 << 20;
// Weights of one set in a segment of several members, each of which reads them again.
constexpr int64_t kWeightBytes = 2 << 20;

template <class T>
int64_t layer_bytes(const stack::Stack<T>& stack) {
  int64_t size = 0;
  for (const int field : {stack::kUp, stack::kDown, stack::kGate})
    if (stack.fields[field].data) size += stack.fields[field].size * static_cast<int64_t>(sizeof(T));
  return std::max<int64_t>(size, 1);
}

template <class T, class A>
class Propagation {
 public:
  Propagation(const std::vector<Member<T, A>>& members, int64_t blocks, const Resources& resources)
      : members_(members),
        resources_(resources),
        table_(stack::kernels<T>(resources.target)),
        shape_(members[0].stack),
        units_(shape_.replicates * shape_.groups() * static_cast<int64_t>(members.size())),
        layers_(std::clamp<int64_t>(kTapeBytes / std::max<int64_t>(units_ * tape_bytes(1), 1), 1, longest(blocks))),
        at_once_(units_at_once()),
        tape_size_(tape_size(layers_)),
        workspace_size_(table_.scratch(shape_.equation, 1)),
        tapes_(at_once_ * tape_size_),
        workspace_(resources.threads * workspace_size_),
        totals_(resources.threads * shape_.equation.width),
        live_(resources.threads * shape_.equation.hidden) {
    for (const Member<T, A>& member : members) followers_ = std::max(followers_, member.accumulators.size());
  }

  void run(int64_t first, int64_t blocks) {
    const int64_t end = first + blocks;
    for (int64_t from = first; from < end && !resources_.stop(); from += layers_) {
      const int64_t layers = std::min(layers_, end - from);
      each_accumulator([&](A* accumulator) { accumulator->reserve(layers); });
      for (int64_t unit = 0; unit < units_ && !resources_.stop(); unit += at_once_)
        pass(unit, std::min(unit + at_once_, units_), from, layers);
      each_accumulator([&](A* accumulator) { accumulator->count_passed(layers); });
    }
  }

 private:
  int64_t tape_size(int64_t layers) const {
    int64_t most = 0;
    for (const Member<T, A>& member : members_) most = std::max(most, GroupTape<T>::size(member.stack, layers));
    return most;
  }
  int64_t tape_bytes(int64_t layers) const { return tape_size(layers) * static_cast<int64_t>(sizeof(T)); }

  int64_t longest(int64_t blocks) const {
    if (members_.size() == 1) return blocks;
    return std::clamp<int64_t>(kWeightBytes / layer_bytes(shape_), 1, blocks);
  }

  // As many as fit, but about equally many each time.
  int64_t units_at_once() const {
    const int64_t fit = std::max<int64_t>(kTapeBytes / std::max<int64_t>(tape_bytes(layers_), 1), 1);
    const int64_t times = std::max<int64_t>((units_ + fit - 1) / fit, 1);
    return std::max<int64_t>((units_ + times - 1) / times, 1);
  }

  template <class Body>
  void each_accumulator(Body&& body) const {
    for (const Member<T, A>& member : members_)
      for (A* const accumulator : member.accumulators) body(accumulator);
  }

  // Of one group of examples after the other, in the order of replicates, all members.
  const Member<T, A>& member_of(int64_t unit) const {
    return members_[static_cast<size_t>(unit % static_cast<int64_t>(members_.size()))];
  }
  GroupTape<T> tape_of(int64_t unit, int64_t first, int64_t layers, T* memory) const {
    const int64_t group = unit / static_cast<int64_t>(members_.size());
    return {member_of(unit).stack, group / shape_.groups(), group % shape_.groups(), first, layers, memory};
  }

  // Takes some units through a segment.
  void pass(int64_t begin, int64_t end, int64_t first, int64_t layers) {
    std::vector<GroupTape<T>> tapes;
    for (int64_t unit = begin; unit < end; ++unit)
      tapes.push_back(tape_of(unit, first, layers, tapes_.get() + (unit - begin) * tape_size_));
    // Where there is enough for all threads, each takes its units all the way, with their weights in its cache.
    const int64_t count = end - begin;
    const bool apart = members_.size() > 1 && count >= 2 * resources_.threads;
    parallel(resources_.threads, count, [&](int64_t i, int worker) {
      forward(begin + i, tapes[static_cast<size_t>(i)], worker);
      if (apart) follow(begin + i, &tapes[static_cast<size_t>(i)], 1, layers, {resources_.target, 1, resources_.stop});
    });
    if (!apart) follow(begin, tapes.data(), count, layers, resources_);
  }

  void forward(int64_t unit, GroupTape<T>& tape, int worker) {
    if (resources_.stop()) return;
    const stack::Equation& eq = shape_.equation;
    tape.forward(table_, member_of(unit).states, workspace_.get() + worker * workspace_size_,
                 totals_.get() + worker * eq.width, live_.get() + worker * eq.hidden, resources_.stop);
  }

  // Takes the accumulators of units from `begin` on through the layers of their tapes.
  void follow(int64_t begin, const GroupTape<T>* tapes, int64_t count, int64_t layers, const Resources& resources) {
    if (resources.stop()) return;
    for (size_t follower = 0; follower < followers_; ++follower) {
      std::vector<Task<T, A>> tasks;
      for (int64_t i = 0; i < count; ++i) {
        const Member<T, A>& member = member_of(begin + i);
        if (follower >= member.accumulators.size()) continue;
        for (int lane = 0; lane < tapes[i].examples(); ++lane)
          tasks.push_back({member.accumulators[follower], tapes + i, lane});
      }
      A::advance(tasks, layers, resources);
    }
  }

  const std::vector<Member<T, A>>& members_;
  const Resources& resources_;
  const stack::Kernels<T> table_;
  const stack::Stack<T>& shape_;  // that all members have
  const int64_t units_, layers_, at_once_, tape_size_, workspace_size_;
  size_t followers_ = 0;
  Buffer<T> tapes_, workspace_;
  Buffer<double> totals_;
  Buffer<unsigned char> live_;
};

template <class T, class A>
void check(const std::vector<Member<T, A>>& members, int64_t first, int64_t blocks, Target target) {
  const stack::Stack<T>& one = members[0].stack;
  std::vector<const A*> all;
  for (const Member<T, A>& member : members) {
    const stack::Equation& eq = member.stack.equation;
    if (member.stack.replicates != one.replicates || member.stack.examples != one.examples ||
        eq.width != one.equation.width || eq.hidden != one.equation.hidden || eq.branch != one.equation.branch)
      throw std::invalid_argument("stacks propagated together must have the same shapes and kind of branch");
    if (first < 0 || blocks < 0 || blocks > member.stack.depth - first)
      throw std::invalid_argument("the stack does not have those layers");
    for (const A* const accumulator : member.accumulators) accumulator->check(member.stack, target);
    all.insert(all.end(), member.accumulators.begin(), member.accumulators.end());
  }
  std::sort(all.begin(), all.end());
  if (std::adjacent_find(all.begin(), all.end()) != all.end())
    throw std::invalid_argument("an accumulator follows one stack");
}

}  // namespace

template <class T, class A>
void propagate(const std::vector<Member<T, A>>& members, int64_t first, int64_t blocks, const Resources& resources) {
  if (members.empty()) return;
  check(members, first, blocks, resources.target);
  if (blocks > 0) Propagation<T, A>(members, blocks, resources).run(first, blocks);
}

#define DG_INSTANTIATE(T, A) \
  template void propagate(const std::vector<Member<T, A<T>>>&, int64_t, int64_t, const Resources&);
DG_INSTANTIATE(float, JacobianAccumulator)
DG_INSTANTIATE(double, JacobianAccumulator)
DG_INSTANTIATE(float, GradedAccumulator)
DG_INSTANTIATE(double, GradedAccumulator)
#undef DG_INSTANTIATE

}  // namespace depthgauge::jacobian
