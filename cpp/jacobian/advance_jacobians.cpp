#include <algorithm>
#include <cmath>
#include <limits>

#include "common/thread_pool.hpp"
#include "jacobian/jacobian_accumulator.hpp"

namespace depthgauge::jacobian {
namespace {

// Rows a piece of work where threads share examples: what the products take at a time.
constexpr int64_t kSharedRows = 48;
// Multiply-adds of a block, half its products, from which on sharing it is worth its overhead.
constexpr int64_t kWorthSharing = 500000;

// Beyond this power of two, up or down, a Jacobian is brought back to about 1.
template <class T>
constexpr int kRange = sizeof(T) == 8 ? 250 : 30;

// The sum of squares of the entries of panels, over the width.
template <class T>
double mean_square(const Tiles<T>& panels, int64_t width) {
  const auto row = [&](int64_t k, int64_t j) { return panels.data + k * panels.row + j / panels.row * panels.group; };
  double top = 0;
  const auto each = [&](auto&& visit) {
    for (int64_t j = 0; j < width; j += panels.row) {
      const int64_t n = std::min(panels.row, width - j);
      for (int64_t k = 0; k < width; ++k) visit(row(k, j), n);
    }
  };
  bool defined = true;
  each([&](const T* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const double size = std::abs(static_cast<double>(x[i]));
      defined &= !std::isnan(size);
      top = std::max(top, size);
    }
  });
  if (!defined) return std::nan("");
  if (top == 0 || std::isinf(top)) return top;
  const int exponent = std::ilogb(top);
  const double down = std::ldexp(1.0, -exponent / 2), rest = std::ldexp(1.0, -exponent + exponent / 2);
  constexpr int kSums = 8;
  double sums[kSums] = {};
  each([&](const T* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const double v = static_cast<double>(x[i]) * down * rest;
      sums[i % kSums] += v * v;
    }
  });
  double total = 0;
  for (const double s : sums) total += s;
  return std::ldexp(total / static_cast<double>(width), 2 * exponent);
}

}  // namespace

// One call of `advance`.
template <class T>
class JacobianAccumulator<T>::Advance {
 public:
  using OneTask = Task<T, JacobianAccumulator>;

  Advance(const std::vector<OneTask>& tasks, int64_t blocks, const Resources& resources)
      : tasks_(tasks),
        table_(tasks[0].accumulator->table_),
        width_(tasks[0].accumulator->width_),
        blocks_(blocks),
        resources_(resources),
        count_(static_cast<int64_t>(tasks.size())),
        alone_(width_ * width_ * tasks[0].tape->equation().hidden < kWorthSharing
                   ? count_
                   : count_ / resources.threads * resources.threads),
        slots_(std::max(std::min<int64_t>(alone_, resources.threads), count_ - alone_)),
        block_size_(table_.block_workspace(tasks[0].tape->equation())),
        row_size_(table_.row_workspace(tasks[0].tape->equation())),
        block_workspace_(slots_ * block_size_),
        row_workspace_(resources.threads * row_size_),
        linearized_(static_cast<size_t>(slots_)) {}

  void run() {
    one_each();
    together();
  }

 private:
  // As many examples as divide among the threads go all the way by themselves.
  void one_each() {
    parallel(resources_.threads, alone_, [&](int64_t i, int worker) {
      const OneTask& task = tasks_[static_cast<size_t>(i)];
      for (int64_t l = 0; l < blocks_ && !resources_.stop(); ++l) {
        if (!linearize(task, l, worker)) continue;
        in_portions(width_, resources_.stop, [&](int64_t from, int64_t to) { form(task, l, worker, from, to); });
        T top = 0;
        in_portions(width_, resources_.stop, [&](int64_t from, int64_t to) {
          top = std::max(top, multiply(task, l, worker, worker, from, to));
        });
        if (resources_.stop()) return;
        finish(task, l, worker, top);
      }
    });
  }

  // Of those that are left all threads share the rows of each block.
  void together() {
    const int64_t rest = count_ - alone_, parts = (width_ + kSharedRows - 1) / kSharedRows;
    const OneTask* const tasks = tasks_.data() + alone_;
    std::vector<T> tops(static_cast<size_t>(rest * parts));
    for (int64_t l = 0; l < blocks_ && rest > 0 && !resources_.stop(); ++l) {
      parallel(resources_.threads, rest, [&](int64_t slot, int) { linearize(tasks[slot], l, slot); });
      const auto each_part = [&](auto&& body) {
        parallel(resources_.threads, rest * parts, [&](int64_t i, int worker) {
          const int64_t slot = i / parts, from = i % parts * kSharedRows;
          if (!lost(tasks[slot]) && !resources_.stop())
            body(i, slot, worker, from, std::min(from + kSharedRows, width_));
        });
      };
      each_part([&](int64_t, int64_t slot, int, int64_t from, int64_t to) { form(tasks[slot], l, slot, from, to); });
      each_part([&](int64_t i, int64_t slot, int worker, int64_t from, int64_t to) {
        tops[static_cast<size_t>(i)] = multiply(tasks[slot], l, slot, worker, from, to);
      });
      if (resources_.stop()) return;
      parallel(resources_.threads, rest, [&](int64_t slot, int) {
        if (lost(tasks[slot])) return;
        const auto from = tops.begin() + slot * parts;
        finish(tasks[slot], l, slot, parts ? *std::max_element(from, from + parts) : T(0));
      });
    }
  }

  static bool lost(const OneTask& task) { return task.accumulator->lost_[static_cast<size_t>(task.number())] != 0; }

  // At the start the Jacobian is the identity, and becomes the block's without being multiplied.
  static bool at_start(const JacobianAccumulator& to, int64_t l) { return !to.orders_ && to.passed_ + l == 0; }

  static size_t square_index(const OneTask& task, int64_t l) {
    return static_cast<size_t>((task.accumulator->passed_ + l) * task.accumulator->count_ + task.number());
  }

  Linearized<T>& linearized(int64_t slot) { return linearized_[static_cast<size_t>(slot)]; }

  // False where the example is lost by the end of the block.
  bool linearize(const OneTask& task, int64_t l, int64_t slot) {
    if (lost(task) || task.tape->is_lost(l, task.lane)) {
      lose(task, l);
      return false;
    }
    const bool whole = task.accumulator->orders_ || at_start(*task.accumulator, l);
    task.tape->linearize(table_, l, task.lane, whole ? Request::whole : Request::least,
                         block_workspace_.get() + slot * block_size_, &linearized(slot));
    return true;
  }

  static void lose(const OneTask& task, int64_t l) {
    JacobianAccumulator& to = *task.accumulator;
    const T nan = std::numeric_limits<T>::quiet_NaN();
    if (!lost(task)) std::fill_n(to.rows(task.number(), 0).data, to.parts_ * to.size_, nan);
    to.lost_[static_cast<size_t>(task.number())] = 1;
    if (!to.orders_) return;
    const size_t index = square_index(task, l);
    to.branch_squares_[index] = to.post_squares_[index] = std::nan("");
  }

  void form(const OneTask& task, int64_t l, int64_t slot, int64_t from, int64_t to) {
    const Linearized<T>& at = linearized(slot);
    if (at.form != Form::whole || at_start(*task.accumulator, l)) return;
    table_.form(task.tape->equation(), at, from, to, T(0), at.product);
  }

  T multiply(const OneTask& task, int64_t l, int64_t slot, int worker, int64_t from, int64_t to) {
    const stack::Equation& eq = task.tape->equation();
    const JacobianAccumulator& of = *task.accumulator;
    const Linearized<T>& at = linearized(slot);
    const Tiles<T> rows = of.rows(task.number(), 0);
    if (at_start(of, l)) {
      table_.form(eq, at, from, to, at.skip, rows);
      table_.norm(eq, at.norm[stack::kPost], rows, from, to);
      return table_.top(eq, rows, from, to);
    }
    const Tangents<T> tangents{rows, of.size_, of.parts_, of.orders_};
    return table_.advance(eq, at, tangents, from, to, row_workspace_.get() + worker * row_size_);
  }

  void finish(const OneTask& task, int64_t l, int64_t slot, T top) {
    JacobianAccumulator& to = *task.accumulator;
    if (to.orders_) measure(task, linearized(slot), square_index(task, l));
    if (!(top > 0) || std::isinf(top)) return;
    const int exponent = std::ilogb(top);
    if (std::abs(exponent) <= kRange<T>) return;
    for (int64_t k = 0; k < to.parts_; ++k)
      table_.scale(task.tape->equation(), to.rows(task.number(), k), 0, width_, -exponent);
    to.exponents_[static_cast<size_t>(task.number())] += exponent;
  }

  void measure(const OneTask& task, const Linearized<T>& at, size_t index) {
    JacobianAccumulator& to = *task.accumulator;
    to.branch_squares_[index] = mean_square(at.product, width_);
    to.post_squares_[index] = 1;
    if (!at.norm[stack::kPost].active) return;
    for (int64_t j = 0; j < width_; j += stack::kGroup<T>)
      for (int64_t k = 0; k < width_; ++k) {
        T* const tile = at.product.data + k * at.product.row + j / stack::kGroup<T> * at.product.group;
        for (int i = 0; i < stack::kGroup<T>; ++i) tile[i] = j + i == k;
      }
    table_.norm(task.tape->equation(), at.norm[stack::kPost], at.product, 0, width_);
    to.post_squares_[index] = mean_square(at.product, width_);
  }

  const std::vector<OneTask>& tasks_;
  const Kernels<T>& table_;
  const int64_t width_, blocks_;
  const Resources& resources_;
  const int64_t count_, alone_, slots_, block_size_, row_size_;
  Buffer<T> block_workspace_, row_workspace_;
  std::vector<Linearized<T>> linearized_;
};

template <class T>
void JacobianAccumulator<T>::advance(const std::vector<Task<T, JacobianAccumulator>>& tasks, int64_t blocks,
                                     const Resources& resources) {
  if (!tasks.empty()) Advance(tasks, blocks, resources).run();
}

template void JacobianAccumulator<float>::advance(const std::vector<Task<float, JacobianAccumulator<float>>>&, int64_t,
                                                  const Resources&);
template void JacobianAccumulator<double>::advance(const std::vector<Task<double, JacobianAccumulator<double>>>&,
                                                   int64_t, const Resources&);

}  // namespace depthgauge::jacobian
