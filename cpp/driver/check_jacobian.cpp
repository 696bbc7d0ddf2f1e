#include <atomic>
#include <cmath>
#include <limits>
#include <memory>

#include "driver/checks.hpp"
#include "driver/problem.hpp"
#include "jacobian/graded_walk.hpp"
#include "jacobian/walk.hpp"
#include "jacobian/walks.hpp"

namespace depthgauge::driver {
namespace {

using jacobian::GradedWalk;
using jacobian::Walk;

template <class T>
constexpr double kTolerance = sizeof(T) == sizeof(float) ? 5e-5 : 1e-12;

// What a walk through a whole stack gives, in two calls.
template <class T>
struct Walked {
  Walked(const Problem<T>& problem, Span span, const ForwardRun<T>& forwarded, bool orders, const Resources& resources)
      : stack(problem.stack_of(span)),
        parts(orders ? stack.depth + 1 : 1),
        count(stack.replicates * span.count),
        width(stack.equation.width),
        matrices(count * parts * width * width),
        values(orders ? 0 : count * width),
        exponents(count),
        value_exponents(orders ? 0 : count),
        converged(orders ? 0 : count) {
    Walk<T> walk(resources.target, width, count, parts, orders);
    const int64_t half = stack.depth / 2;
    walk.advance(stack, forwarded.tape(), 0, half, resources);
    walk.advance(stack, forwarded.tape(), half, stack.depth - half, resources);
    walk.copy(matrices.data(), exponents.data(), resources);
    if (!orders) walk.singular_values(values.data(), value_exponents.data(), converged.data(), resources);
    branch_squares = walk.branch_squares();
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
  Array<T> matrices, values;
  Array<int64_t> exponents, value_exponents;
  Array<bool> converged;
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
        whole_(problem_, span_, forwarded_, false, alone_) {}

  void run() {
    tangents();
    orders();
    graded();
    const Walked<T> again(problem_, span_, forwarded_, false, together_);
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
          const double term = whole_.at(n, 0, i, j) *
                              static_cast<double>(tangent.at(0, n / span_.count, n % span_.count, j));
          sum += term;
          size += std::abs(term);
        }
        // Small eps amplifies rounding errors of rows that a norm has made constant.
        const double slack = case_.equation.eps < 0.001 ? 1e4 : 10;
        const double expected = static_cast<double>(tangented.output[n * d + i]);
        close &= std::abs(sum - expected) <= slack * kTolerance<T> * (size + top + std::abs(expected));
      }
      check(close, "a jacobian times a tangent is the tangent's passage");
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
    const Walked<T> parts(problem_, span_, forwarded_, true, together_);
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
  }

  // The largest singular value is the same by either way.
  void graded() {
    const int64_t d = whole_.width;
    if (d > 64) return;  // minutes under a sanitizer
    GradedWalk<T> walk(together_.target, d, case_.equation.hidden, whole_.count);
    walk.advance(whole_.stack, forwarded_.tape(), 0, case_.depth, together_);
    Array<double> logs(whole_.count * d);
    walk.log_singular_values(logs.data(), together_);
    for (int64_t n = 0; d > 0 && n < whole_.count; ++n) {
      check(whole_.converged[n], "singular values of jacobians are found");
      const double top = std::ldexp(static_cast<double>(whole_.values[n * d]), static_cast<int>(whole_.value_exponents[n]));
      if (!(top > 0)) continue;
      check(std::abs(logs[n * d] - std::log(top)) <= 1e6 * kTolerance<T>, "graded and plain products agree");
    }
  }

  // Examples by themselves.
  void batches() {
    Random random(case_.seed + 7);
    const Span span{random.below(span_.count), 1};
    const ForwardRun<T> forwarded(problem_, span, true, together_);
    const Walked<T> part(problem_, span, forwarded, false, together_);
    const auto size = static_cast<size_t>(whole_.width * whole_.width);
    for (int64_t r = 0; size > 0 && r < case_.replicates; ++r)
      check(std::memcmp(whole_.matrices.data() + (r * span_.count + span.first) * static_cast<int64_t>(size),
                        part.matrices.data() + r * static_cast<int64_t>(size), size * sizeof(T)) == 0,
            "a jacobian has the same bits in any batch");
  }

  // States that walks side by side start from.
  std::vector<T> states() const {
    const stack::Rows<T> x = problem_.x().from(0);
    std::vector<T> found;
    for (int64_t r = 0; r < case_.replicates; ++r)
      for (int64_t b = 0; b < span_.count; ++b)
        for (int64_t k = 0; k < whole_.width; ++k) found.push_back(x.at(0, problem_.x_of()[r], b, k));
    return found;
  }

  // Walks on the same weights do not know of each other, and are where each comes to by itself.
  void side_by_side(const Resources& resources) {
    std::vector<std::unique_ptr<Walk<T>>> walks;
    std::vector<std::vector<T>> at(3, states());
    std::vector<jacobian::Traveler<T>> travelers;
    for (size_t i = 0; i < at.size(); ++i) {
      walks.push_back(std::make_unique<Walk<T>>(resources.target, whole_.width, whole_.count, 1, false));
      travelers.push_back({walks[i].get(), whole_.stack, at[i].data()});
    }
    travelers[1].stack.equation.weight_scale *= 0.5;
    travelers[1].stack.equation.norm[stack::kPre] = stack::Norm::layer;
    const int64_t half = case_.depth / 2;
    jacobian::advance_walks(travelers, 0, half, resources);
    jacobian::advance_walks(travelers, half, case_.depth - half, resources);
    const auto same = [](const T* a, const T* b, int64_t count) {
      return count == 0 || std::memcmp(a, b, static_cast<size_t>(count) * sizeof(T)) == 0;
    };
    for (const size_t i : {size_t{0}, size_t{2}}) {
      Array<T> matrices(whole_.matrices.size());
      Array<int64_t> exponents(whole_.count);
      walks[i]->copy(matrices.data(), exponents.data(), resources);
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
    Walked<T>(problem_, span_, forwarded_, case_.seed % 2 == 0, {together_.target, together_.threads, stop});
    left = Random(case_.seed + 9).below(2 * whole_.count * (case_.depth + 1) + 1);
    Walk<T> walk(together_.target, whole_.width, whole_.count, 1, false);
    std::vector<T> at = states();
    jacobian::advance_walks<T>({{&walk, whole_.stack, at.data()}}, 0, case_.depth,
                               {together_.target, together_.threads, stop});
  }

  const Case& case_;
  const Problem<T> problem_;
  const Resources alone_, together_;
  const Span span_;  // some of the examples: more take the same ways
  const ForwardRun<T> forwarded_;
  const Walked<T> whole_;
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
