#include <cmath>
#include <limits>

#include "driver/checks.hpp"
#include "driver/problem.hpp"

namespace depthgauge::driver {
namespace {

using namespace stack;

// Rounding errors of the quantities compared here, relative to the size of their terms.
template <class T>
constexpr double kTolerance = sizeof(T) == sizeof(float) ? 2e-5 : 1e-13;

bool close(double a, double b, double tolerance) {
  return (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= tolerance;
}

template <class T>
double rms_of(const T* values, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return count ? std::sqrt(sum / static_cast<double>(count)) : std::nan("");
}

template <class T>
bool all_finite(const Array<T>& values) {
  return std::all_of(values.data(), values.data() + values.size(), [](T x) { return std::isfinite(x); });
}

// The checks of one case on one instruction set.
template <class T>
class Numbers {
 public:
  Numbers(const Case& c, Target target)
      : case_(c),
        width_(c.equation.width),
        problem_(c),
        alone_{target, 1, never()},
        together_{target, c.threads, never()},
        forwarded_(problem_, problem_.all(), true, alone_),
        reversed_(problem_, problem_.all(), forwarded_, WeightGradients::none, alone_),
        tangented_(problem_, problem_.all(), forwarded_, alone_) {}

  void run() {
    plausible();
    threads();
    adjoint();
    if (case_.examples > 0) {
      weights();
      batches();
    }
    Problem<T> again(case_);
    check_same(problem_.inputs(), again.inputs(), "inputs are not written");
    if (case_.examples * width_ > 0) neighbors(again);
  }

 private:
  // Results are finite, and the last statistics are those of the results.
  void plausible() {
    check_written(forwarded_.results());
    check_written(reversed_.results());
    check_written(tangented_.results());
    check(all_finite(forwarded_.output), "outputs of finite inputs are finite");
    check(all_finite(reversed_.input_gradient), "gradients of finite inputs are finite");
    check(all_finite(tangented_.output), "tangents of finite inputs are finite");
    statistics(forwarded_.output, case_.depth, forwarded_.rms, &forwarded_.max_abs, &forwarded_.nonfinite);
    statistics(reversed_.input_gradient, 0, reversed_.rms, &reversed_.max_abs, &reversed_.nonfinite);
    statistics(tangented_.output, case_.depth, tangented_.rms, nullptr, nullptr);
    quantiles(forwarded_.quantiles, forwarded_.max_abs);
    quantiles(reversed_.quantiles, reversed_.max_abs);
  }

  // In order, and the last one is the maximum.
  void quantiles(const Array<double>& quantiles, const Array<double>& max_abs) {
    const auto levels = static_cast<int64_t>(kLevels.size());
    if (case_.examples * width_ == 0) return;
    for (int64_t i = 0; i < quantiles.size() / levels; ++i) {
      const double* q = quantiles.data() + i * levels;
      check(std::is_sorted(q, q + levels) && q[0] >= 0 && q[levels - 1] == max_abs[i], "quantiles reach up to max_abs");
    }
  }

  // Layer `l` of the statistics against the values themselves, one replicate and probe after the other.
  void statistics(const Array<T>& values, int64_t l, const Array<double>& rms, const Array<double>* max_abs,
                  const Array<int64_t>* nonfinite) {
    const int64_t states = case_.depth + 1, count = case_.examples * width_;
    for (int64_t i = 0; i < rms.size() / states; ++i) {
      const T* part = values.data() + i * count;
      const double expected = rms_of(part, count);
      check(close(rms[i * states + l], expected, kTolerance<T> * expected), "rms is that of the values");
      if (!max_abs || !count) continue;
      double top = 0;
      for (int64_t k = 0; k < count; ++k) top = std::max(top, static_cast<double>(std::abs(part[k])));
      check((*max_abs)[i * states + l] == top, "max_abs is that of the values");
      check((*nonfinite)[i * states + l] == 0, "finite values are counted as such");
    }
  }

  void threads() {
    const Span all = problem_.all();
    const ForwardRun<T> kept(problem_, all, true, together_), dropped(problem_, all, false, together_);
    check_same(forwarded_.results(), kept.results(), "forward: the same bits with several threads");
    check_same(forwarded_.tape_bytes(), kept.tape_bytes(), "forward: the same bits with several threads");
    check_same(forwarded_.results(), dropped.results(), "forward: the same bits when nothing is kept");
    const VjpRun<T> reversed(problem_, all, forwarded_, WeightGradients::none, together_);
    check_same(reversed_.results(), reversed.results(), "vjp: the same bits with several threads");
    const JvpRun<T> tangented(problem_, all, forwarded_, together_);
    check_same(tangented_.results(), tangented.results(), "jvp: the same bits with several threads");
  }

  // <J v, w> = <v, J^T w> for every example: they never couple.
  void adjoint() {
    // Small eps amplifies rounding errors of rows that a norm has made constant.
    if (case_.equation.eps < 0.001) return;
    const Rows<T> tangent = problem_.tangent().from(0), cotangent = problem_.cotangent().from(0);
    bool adjoint = true;
    for (int64_t p = 0; p < case_.probes; ++p)
      for (int64_t r = 0; r < case_.replicates; ++r)
        for (int64_t b = 0; b < case_.examples; ++b) {
          double forth = 0, back = 0, size = 0;
          const int64_t at = ((p * case_.replicates + r) * case_.examples + b) * width_;
          for (int64_t k = 0; k < width_; ++k) {
            const double v = static_cast<double>(tangent.at(p, r, b, k));
            const double w = static_cast<double>(cotangent.at(p, r, b, k));
            const double jv = static_cast<double>(tangented_.output[at + k]);
            const double jtw = static_cast<double>(reversed_.input_gradient[at + k]);
            forth += jv * w;
            back += v * jtw;
            size += std::abs(jv * w) + std::abs(v * jtw) + std::abs(v * w);
          }
          adjoint &= close(forth, back, 10 * kTolerance<T> * size);
        }
    check(adjoint, "the vjp is the adjoint of the jvp");
  }

  void weights() {
    if (case_.probes < 1) return;
    const Span all = problem_.all();
    const VjpRun<T> full(problem_, all, forwarded_, WeightGradients::full, alone_);
    const VjpRun<T> full_together(problem_, all, forwarded_, WeightGradients::full, together_);
    const VjpRun<T> brief(problem_, all, forwarded_, WeightGradients::rms, alone_);
    const VjpRun<T> brief_together(problem_, all, forwarded_, WeightGradients::rms, together_);
    check_same(full.results(), full_together.results(), "weight gradients: the same bits with several threads");
    check_same(brief.results(), brief_together.results(), "weight rms: the same bits with several threads");
    check(std::memcmp(full.input_gradient.data(), reversed_.input_gradient.data(), full.input_gradient.bytes()) == 0,
          "the input gradient has the same bits with weight gradients");
    check(std::memcmp(brief.input_gradient.data(), reversed_.input_gradient.data(), brief.input_gradient.bytes()) == 0,
          "the input gradient has the same bits with the rms of weight gradients");
    check_written(full.results());
    if (case_.own_weights || case_.replicates == 1) weight_rms(full, brief);
    if (case_.own_weights || case_.replicates == 1) last_matrix(full);
  }

  // With a weight set for each replicate the rms of a gradient is that of the gradient.
  void weight_rms(const VjpRun<T>& full, const VjpRun<T>& brief) {
    const Stack<T> stack = problem_.stack_of(problem_.all());
    bool known = true;
    for (int field = 0; field < kFields; ++field) {
      const int64_t size = stack.fields[field].data ? stack.field_size(field) : 0;
      for (int64_t r = 0; size && r < case_.replicates; ++r)
        for (int64_t l = 0; l < case_.depth; ++l) {
          const double expected = rms_of(full.weights[field].data() + (stack.set_of[r] * case_.depth + l) * size, size);
          known &= close(brief.weight_rms[field][r * case_.depth + l], expected, kTolerance<T> * expected);
        }
    }
    check(known, "the rms of a weight gradient is that of its values");
  }

  // The branch is linear in its last matrix and bias together: the inner product of these with their gradients is
  // branch_scale times the gradient of branch_scale.
  void last_matrix(const VjpRun<T>& full) {
    const Stack<T> stack = problem_.stack_of(problem_.all());
    const bool normed = stack.equation.norm[kOutput] != Norm::none || case_.gains || case_.shifts;
    if (normed || stack.equation.branch == Branch::linear) return;
    for (int64_t r = 0; r < case_.replicates; ++r)
      for (int64_t l = 0; l < case_.depth; ++l) {
        double sum = 0, size = 0;
        for (const int field : {kDown, kBDown}) {
          const T* values = problem_.parameter(field, stack.set_of[r], l);
          if (!values) continue;
          const int64_t count = stack.field_size(field);
          const T* gradient = full.weights[field].data() + (stack.set_of[r] * case_.depth + l) * count;
          for (int64_t i = 0; i < count; ++i) {
            const double term = static_cast<double>(values[i]) * static_cast<double>(gradient[i]);
            sum += term;
            size += std::abs(term);
          }
        }
        const double expected = static_cast<double>(stack.branch_scale[l]) * full.branch_scale[r * case_.depth + l];
        check(close(sum, expected, 10 * kTolerance<T> * size),
              "the gradients of branch_scale and of the last matrix agree");
      }
  }

  // Any examples by themselves give the rows that they have in the batch.
  void batches() {
    const int64_t last = case_.examples - 1;
    Random random(case_.seed + 4);
    part({random.one_in(2) ? last : random.below(case_.examples), 1});
    if (last == 0) return;
    const int64_t cut = 1 + random.below(last);
    part({0, cut});
    part({cut, last + 1 - cut});
  }

  void part(Span span) {
    const ForwardRun<T> forwarded(problem_, span, true, alone_);
    const VjpRun<T> reversed(problem_, span, forwarded, WeightGradients::none, alone_);
    const JvpRun<T> tangented(problem_, span, forwarded, alone_);
    check(same_rows(forwarded_.output, span, forwarded.output), "an output has the same bits in any batch");
    check(same_rows(reversed_.input_gradient, span, reversed.input_gradient),
          "an input gradient has the same bits in any batch");
    check(same_rows(tangented_.output, span, tangented.output), "a tangent has the same bits in any batch");
  }

  // The rows of a span of all examples, and those of the span by itself.
  bool same_rows(const Array<T>& all, Span span, const Array<T>& part) const {
    bool same = true;
    for (int64_t b = 0; b < span.count; ++b) same &= same_row(all, case_.examples, span.first + b, part, span.count, b);
    return same;
  }

  // Row `b` of the first and row `c` of the second array, in every replicate and probe.
  bool same_row(const Array<T>& first, int64_t first_rows, int64_t b, const Array<T>& second, int64_t second_rows,
                int64_t c) const {
    if (width_ == 0) return true;
    bool same = true;
    for (int64_t i = 0; i < first.size() / (first_rows * width_); ++i)
      same &= std::memcmp(first.data() + (i * first_rows + b) * width_, second.data() + (i * second_rows + c) * width_,
                          sizeof(T) * static_cast<size_t>(width_)) == 0;
    return same;
  }

  // NaN and Inf stay in their examples.
  void neighbors(Problem<T>& problem) {
    Random random(case_.seed + 5);
    const int64_t sick = random.below(case_.examples);
    problem.poison(sick, random.one_in(2) ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::infinity());
    const Span all = problem.all();
    const ForwardRun<T> forwarded(problem, all, true, alone_);
    const VjpRun<T> reversed(problem, all, forwarded, WeightGradients::none, together_);
    const JvpRun<T> tangented(problem, all, forwarded, alone_);
    const auto others = [&](const Array<T>& before, const Array<T>& after) {
      bool same = true;
      for (int64_t b = 0; b < all.count; ++b) same &= b == sick || same_row(before, all.count, b, after, all.count, b);
      return same;
    };
    check(others(forwarded_.output, forwarded.output), "a non-finite example leaves the other outputs alone");
    check(others(reversed_.input_gradient, reversed.input_gradient),
          "a non-finite example leaves the other gradients alone");
    check(others(tangented_.output, tangented.output), "a non-finite example leaves the other tangents alone");
    for (int64_t i = 0; i < forwarded.nonfinite.size(); i += case_.depth + 1)
      check(forwarded.nonfinite[i] == 1, "a non-finite input is counted");
  }

  const Case& case_;
  const int64_t width_;
  const Problem<T> problem_;
  const Resources alone_, together_;
  const ForwardRun<T> forwarded_;
  const VjpRun<T> reversed_;
  const JvpRun<T> tangented_;
};

}  // namespace

template <class T>
void check_numbers(const Case& c, Target target) {
  set_context(describe(c, sizeof(T) == sizeof(float) ? "float" : "double", target));
  Numbers<T>(c, target).run();
}

template void check_numbers<float>(const Case&, Target);
template void check_numbers<double>(const Case&, Target);

}  // namespace depthgauge::driver
