#include <atomic>
#include <cmath>
#include <limits>
#include <memory>

#include "driver/checks.hpp"
#include "driver/problem.hpp"
#include "jacobian/graded_accumulator.hpp"
#include "jacobian/jacobian_accumulator.hpp"
#include "jacobian/propagation.hpp"

namespace depthgauge::driver {
namespace {

using jacobian::GradedAccumulator;
using jacobian::JacobianAccumulator;
using jacobian::Member;

template <class T>
constexpr double kTolerance = sizeof(T) == sizeof(float) ? 5e-5 : 1e-12;

// The states at the input, [replicate][example][feature].
template <class T>
std::vector<T> input_states(const Problem<T>& problem, Span span) {
  const stack::Rows<T> x = problem.x().from(span.first);
  std::vector<T> found;
  for (int64_t r = 0; r < problem.options().replicates; ++r)
    for (int64_t b = 0; b < span.count; ++b)
      for (int64_t k = 0; k < problem.options().equation.width; ++k) found.push_back(x.at(0, problem.x_of()[r], b, k));
  return found;
}

// What accumulates through a whole stack, in two calls: the Jacobians, or the parts of their path orders and the
// Jacobians beside them.
template <class T>
struct Accumulated {
  Accumulated(const Problem<T>& problem, Span span, bool orders, const Resources& resources)
      : stack(problem.stack_of(span)),
        parts(orders ? stack.depth + 1 : 1),
        count(stack.replicates * span.count),
        width(stack.equation.width),
        matrices(count * parts * width * width),
        values(orders ? 0 : count * width),
        whole(orders ? count * width * width : 0),
        exponents(count),
        value_exponents(count),
        converged(orders ? 0 : count) {
    JacobianAccumulator<T> accumulator(resources.target, width, count, parts, orders);
    JacobianAccumulator<T> beside(resources.target, width, count, 1, false);
    states = input_states(problem, span);
    Member<T, JacobianAccumulator<T>> member{stack, states.data(), {&accumulator}};
    if (orders) member.accumulators.push_back(&beside);
    const int64_t half = stack.depth / 2;
    jacobian::propagate<T, JacobianAccumulator<T>>({member}, 0, half, resources);
    jacobian::propagate<T, JacobianAccumulator<T>>({member}, half, stack.depth - half, resources);
    accumulator.copy(matrices.data(), exponents.data(), resources);
    if (orders)
      beside.copy(whole.data(), value_exponents.data(), resources);
    else
      accumulator.singular_values(values.data(), value_exponents.data(), converged.data(), resources);
    branch_squares = accumulator.branch_squares();
    for (int64_t n = 0; n < count; ++n) power.push_back(std::ldexp(1.0, static_cast<int>(exponents[n])));
  }

  std::vector<Bytes> results() const {
    return {bytes_of("jacobians", matrices), bytes_of("exponents", exponents), bytes_of("singular values", values)};
  }
  double at(int64_t example, int64_t part, int64_t i, int64_t j) const {
    return power[static_cast<size_t>(example)] *
           static_cast<double>(matrices[((example * parts + part) * width + i) * width + j]);
  }

  stack::Stack<T> stack;
  int64_t parts, count, width;
  Array<T> matrices, values, whole;
  Array<int64_t> exponents, value_exponents;
  Array<bool> converged;
  std::vector<T> states;
  std::vector<double> branch_squares, power;
};

template <class T>
class Jacobians {
 public:
  Jacobians(const Case& c, Target target)
      : case_(c),
        problem_(c),
        alone_{target, 1, never()},
        together_{target, c.threads, never()},
        span_{0, std::min<int64_t>(c.examples, 9)},
        forwarded_(problem_, span_, true, alone_),
        whole_(problem_, span_, false, alone_) {}

  void run() {
    tangents();
    orders();
    graded();
    const Accumulated<T> again(problem_, span_, false, together_);
    check(same(whole_.states.data(), forwarded_.output.data(), static_cast<int64_t>(whole_.states.size())),
          "states end where the forward pass does");
    check_same(whole_.results(), again.results(), "jacobians: the same bits with several threads");
    if (span_.count > 0) batches();
    side_by_side(alone_);
    side_by_side(together_);
    stopped();
  }

 private:
  // Times a tangent they are what the tangent pass gives.
  void tangents() {
    const JvpRun<T> tangented(problem_, span_, forwarded_, alone_);
    const stack::Rows<T> tangent = problem_.tangent().from(0);
    const int64_t d = whole_.width;
    // Of the derivative of an rms norm with one feature and no eps only rounding errors are left.
    const bool nothing = d == 1 && case_.equation.eps == 0;
    for (int64_t n = 0; case_.probes > 0 && !nothing && n < whole_.count; ++n) {
      const double top = largest(n);
      bool close = true;
      for (int64_t i = 0; i < d; ++i) {
        double sum = 0, size = 0;
        for (int64_t j = 0; j < d; ++j) {
          const double term =
              whole_.at(n, 0, i, j) * static_cast<double>(tangent.at(0, n / span_.count, n % span_.count, j));
          sum += term;
          size += std::abs(term);
        }
        // Small eps amplifies rounding errors of rows that a norm has made constant.
        const double slack = case_.equation.eps < 0.001 ? 1e4 : 10;
        const double expected = static_cast<double>(tangented.output[n * d + i]);
        close &= std::abs(sum - expected) <= slack * kTolerance<T> * (size + top + std::abs(expected));
      }
      check(close, "a jacobian times a tangent is what the tangent pass gives");
    }
  }

  double largest(int64_t n) const {
    double top = 0;
    for (int64_t i = 0; i < whole_.width; ++i)
      for (int64_t j = 0; j < whole_.width; ++j) top = std::max(top, std::abs(whole_.at(n, 0, i, j)));
    return top;
  }

  // The parts of all path orders sum to the Jacobian.
  void orders() {
    const Accumulated<T> parts(problem_, span_, true, together_);
    for (int64_t n = 0; n < whole_.count; ++n) {
      const double top = largest(n);
      bool close = true;
      for (int64_t i = 0; i < whole_.width; ++i)
        for (int64_t j = 0; j < whole_.width; ++j) {
          double sum = 0, size = 0;
          for (int64_t k = 0; k < parts.parts; ++k) {
            sum += parts.at(n, k, i, j);
            size += std::abs(parts.at(n, k, i, j));
          }
          close &= std::abs(sum - whole_.at(n, 0, i, j)) <= 100 * kTolerance<T> * (size + top);
        }
      check(close, "path orders sum to the jacobian");
    }
    check(static_cast<int64_t>(parts.branch_squares.size()) == case_.depth * whole_.count,
          "each block's branch is measured");
    check(same(parts.whole.data(), whole_.matrices.data(), parts.whole.size()),
          "jacobians have the same bits with path orders beside them");
  }

  // The largest singular value is the same by either way.
  void graded() {
    const int64_t d = whole_.width;
    if (d > 64) return;  // minutes under a sanitizer
    GradedAccumulator<T> accumulator(together_.target, d, case_.equation.hidden, whole_.count);
    std::vector<T> states = input_states(problem_, span_);
    jacobian::propagate<T, GradedAccumulator<T>>({{whole_.stack, states.data(), {&accumulator}}}, 0, case_.depth,
                                                 together_);
    Array<double> logs(whole_.count * d);
    accumulator.log_singular_values(logs.data(), together_);
    for (int64_t n = 0; d > 0 && n < whole_.count; ++n) {
      check(whole_.converged[n], "singular values of jacobians are found");
      const double top =
          std::ldexp(static_cast<double>(whole_.values[n * d]), static_cast<int>(whole_.value_exponents[n]));
      if (!(top > 0)) continue;
      check(std::abs(logs[n * d] - std::log(top)) <= 1e6 * kTolerance<T>, "graded and plain products agree");
    }
  }

  // Examples by themselves.
  void batches() {
    Random random(case_.seed + 7);
    const Span span{random.below(span_.count), 1};
    const Accumulated<T> part(problem_, span, false, together_);
    const auto size = static_cast<size_t>(whole_.width * whole_.width);
    for (int64_t r = 0; size > 0 && r < case_.replicates; ++r)
      check(std::memcmp(whole_.matrices.data() + (r * span_.count + span.first) * static_cast<int64_t>(size),
                        part.matrices.data() + r * static_cast<int64_t>(size), size * sizeof(T)) == 0,
            "a jacobian has the same bits in any batch");
  }

  // Stacks with the same weights do not know of each other, and end where each does by itself.
  void side_by_side(const Resources& resources) {
    std::vector<std::unique_ptr<JacobianAccumulator<T>>> accumulators;
    std::vector<std::vector<T>> at(3, input_states(problem_, span_));
    std::vector<Member<T, JacobianAccumulator<T>>> members;
    for (size_t i = 0; i < at.size(); ++i) {
      accumulators.push_back(
          std::make_unique<JacobianAccumulator<T>>(resources.target, whole_.width, whole_.count, 1, false));
      members.push_back({whole_.stack, at[i].data(), {accumulators[i].get()}});
    }
    members[1].stack.equation.weight_scale *= 0.5;
    members[1].stack.equation.norm[stack::kPre] = stack::Norm::layer;
    const int64_t half = case_.depth / 2;
    jacobian::propagate(members, 0, half, resources);
    jacobian::propagate(members, half, case_.depth - half, resources);
    for (const size_t i : {size_t{0}, size_t{2}}) {
      Array<T> matrices(whole_.matrices.size());
      Array<int64_t> exponents(whole_.count);
      accumulators[i]->copy(matrices.data(), exponents.data(), resources);
      check(same(matrices.data(), whole_.matrices.data(), matrices.size()),
            "jacobians side by side have the same bits as alone");
      check(same(at[i].data(), forwarded_.output.data(), static_cast<int64_t>(at[i].size())),
            "states side by side have the same bits as alone");
    }
  }

  // What a stopped call leaves is unspecified, but it stays within its arrays.
  void stopped() {
    std::atomic<int64_t> left{Random(case_.seed + 8).below(4 * whole_.count * (case_.depth + 1) + 1)};
    const Stop stop{[](void* n) { return static_cast<std::atomic<int64_t>*>(n)->fetch_sub(1) <= 0; }, &left};
    Accumulated<T>(problem_, span_, case_.seed % 2 == 0, {together_.target, together_.threads, stop});
  }

  static bool same(const T* a, const T* b, int64_t count) {
    return count == 0 || std::memcmp(a, b, static_cast<size_t>(count) * sizeof(T)) == 0;
  }

  const Case& case_;
  const Problem<T> problem_;
  const Resources alone_, together_;
  const Span span_;  // some of the examples: more take the same ways
  const ForwardRun<T> forwarded_;
  const Accumulated<T> whole_;
};

}  // namespace

template <class T>
void check_jacobians(const Case& c, Target target) {
  set_context(describe(c, sizeof(T) == sizeof(float) ? "float" : "double", target) + ", jacobians");
  Jacobians<T>(c, target).run();
}

template void check_jacobians<float>(const Case&, Target);
template void check_jacobians<double>(const Case&, Target);

}  // namespace depthgauge::driver
