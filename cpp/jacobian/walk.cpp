#include "jacobian/walk.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "common/dispatch.hpp"
#include "common/thread_pool.hpp"
#include "jacobian/example.hpp"
#include "spectra/singular.hpp"

namespace depthgauge::jacobian {
namespace {

// Rows a piece of work where threads share examples: what the products take at a time.
constexpr int64_t kShare = 48;
// Multiply-adds of a block, half its products, from which on sharing it is worth its overhead.
constexpr int64_t kWorthSharing = 500000;

// Beyond this power of two, up or down, a Jacobian is brought back to about 1.
template <class T>
constexpr int kRange = sizeof(T) == 8 ? 250 : 30;

// The sum of squares of the entries of panels, over the width.
template <class T>
double mean_square(const Pieces<T>& panels, int64_t width) {
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

template <class T>
Kernels<T> kernels(Target target) {
  Kernels<T> table{};
  DG_DISPATCH(target, get_kernels(&table))
  return table;
}

// One call that takes examples through some blocks: all those of `stack`, which are the walk's from number `begin` on.
template <class T>
class Walk<T>::Passage {
 public:
  Passage(Walk& walk, int64_t begin, const stack::Stack<T>& stack, const stack::TapeArrays<T>& tape, int64_t first,
          int64_t blocks, const Resources& resources)
      : walk_(walk),
        begin_(begin),
        count_(stack.replicates * stack.examples),
        table_(walk.table_),
        stack_(stack),
        tape_(tape),
        eq_(stack.equation),
        first_(first),
        blocks_(blocks),
        resources_(resources),
        alone_(eq_.width * eq_.width * eq_.hidden < kWorthSharing
                   ? count_
                   : count_ / resources.threads * resources.threads),
        slots_(std::max(std::min<int64_t>(alone_, resources.threads), count_ - alone_)),
        memory_size_(table_.memory(eq_)),
        scratch_size_(table_.scratch(eq_)),
        memory_(slots_ * memory_size_),
        scratch_(resources.threads * scratch_size_),
        linearized_(static_cast<size_t>(slots_)),
        squares_at_(static_cast<int64_t>(walk.branch_squares_.size())) {
    if (!walk.orders_) return;
    const auto more = static_cast<size_t>(squares_at_ + blocks * walk.count_);
    walk.branch_squares_.resize(more);
    walk.post_squares_.resize(more);
  }

  void run() {
    one_each();
    together();
  }

 private:
  // As many examples as divide among the threads go all the way by themselves.
  void one_each() {
    parallel(resources_.threads, alone_, [&](int64_t i, int worker) {
      const int64_t n = begin_ + i;
      for (int64_t l = 0; l < blocks_ && !resources_.stop(); ++l) {
        if (!linearize(n, l, worker)) continue;
        in_portions(eq_.width, resources_.stop, [&](int64_t from, int64_t to) { form(l, worker, from, to); });
        T top = 0;
        in_portions(eq_.width, resources_.stop,
                    [&](int64_t from, int64_t to) { top = std::max(top, pass(n, l, worker, worker, from, to)); });
        if (resources_.stop()) return;
        finish(n, l, worker, top);
      }
    });
  }

  // Of those that are left all threads share the rows of each block.
  void together() {
    const int64_t rest = count_ - alone_, others = begin_ + alone_, shares = (eq_.width + kShare - 1) / kShare;
    std::vector<T> tops(static_cast<size_t>(rest * shares));
    for (int64_t l = 0; l < blocks_ && rest > 0 && !resources_.stop(); ++l) {
      parallel(resources_.threads, rest, [&](int64_t slot, int) { linearize(others + slot, l, slot); });
      const auto each_share = [&](auto&& task) {
        parallel(resources_.threads, rest * shares, [&](int64_t i, int worker) {
          const int64_t slot = i / shares, from = i % shares * kShare;
          if (!walk_.lost(others + slot) && !resources_.stop())
            task(i, slot, worker, from, std::min(from + kShare, eq_.width));
        });
      };
      each_share([&](int64_t, int64_t slot, int, int64_t from, int64_t to) { form(l, slot, from, to); });
      each_share([&](int64_t i, int64_t slot, int worker, int64_t from, int64_t to) {
        tops[static_cast<size_t>(i)] = pass(others + slot, l, slot, worker, from, to);
      });
      if (resources_.stop()) return;
      parallel(resources_.threads, rest, [&](int64_t slot, int) {
        if (walk_.lost(others + slot)) return;
        const auto from = tops.begin() + slot * shares;
        finish(others + slot, l, slot, shares ? *std::max_element(from, from + shares) : T(0));
      });
    }
  }

  // At the start the Jacobian is the identity, and becomes the block's without being multiplied.
  bool at_start(int64_t l) const { return !walk_.orders_ && walk_.passed_ + l == 0; }

  Linearized<T>& linearized(int64_t slot) { return linearized_[static_cast<size_t>(slot)]; }

  // False where the example is lost by the end of the block.
  bool linearize(int64_t n, int64_t l, int64_t slot) {
    const Example<T> example(stack_, tape_, n - begin_);
    if (walk_.lost(n) || example.is_lost(first_ + l + 1)) {
      lose(n, l);
      return false;
    }
    example.linearize(table_, first_ + l, walk_.orders_ || at_start(l) ? Request::whole : Request::least,
                      memory_.get() + slot * memory_size_, &linearized(slot));
    return true;
  }

  void lose(int64_t n, int64_t l) {
    const T nan = std::numeric_limits<T>::quiet_NaN();
    if (!walk_.lost(n)) std::fill_n(walk_.rows(n, 0).data, walk_.parts_ * walk_.size_, nan);
    walk_.lost_[static_cast<size_t>(n)] = 1;
    if (!walk_.orders_) return;
    const auto index = static_cast<size_t>(squares_at_ + l * walk_.count_ + n);
    walk_.branch_squares_[index] = walk_.post_squares_[index] = std::nan("");
  }

  void form(int64_t l, int64_t slot, int64_t from, int64_t to) {
    const Linearized<T>& at = linearized(slot);
    if (at.form != Form::whole || at_start(l)) return;
    table_.form(eq_, at, from, to, T(0), at.product);
  }

  T pass(int64_t n, int64_t l, int64_t slot, int worker, int64_t from, int64_t to) {
    const Linearized<T>& at = linearized(slot);
    const Pieces<T> rows = walk_.rows(n, 0);
    if (at_start(l)) {
      table_.form(eq_, at, from, to, at.skip, rows);
      table_.norm(eq_, at.norm[stack::kPost], rows, from, to);
      return table_.top(eq_, rows, from, to);
    }
    const Tangents<T> tangents{rows, walk_.size_, walk_.parts_, walk_.orders_};
    return table_.pass(eq_, at, tangents, from, to, scratch_.get() + worker * scratch_size_);
  }

  void finish(int64_t n, int64_t l, int64_t slot, T top) {
    if (walk_.orders_) measure(linearized(slot), static_cast<size_t>(squares_at_ + l * walk_.count_ + n));
    if (!(top > 0) || std::isinf(top)) return;
    const int exponent = std::ilogb(top);
    if (std::abs(exponent) <= kRange<T>) return;
    for (int64_t k = 0; k < walk_.parts_; ++k) table_.scale(eq_, walk_.rows(n, k), 0, eq_.width, -exponent);
    walk_.exponents_[static_cast<size_t>(n)] += exponent;
  }

  void measure(const Linearized<T>& at, size_t index) {
    const int64_t d = eq_.width;
    walk_.branch_squares_[index] = mean_square(at.product, d);
    walk_.post_squares_[index] = 1;
    if (!at.norm[stack::kPost].active) return;
    for (int64_t j = 0; j < d; j += stack::kGroup<T>)
      for (int64_t k = 0; k < d; ++k) {
        T* const piece = at.product.data + k * at.product.row + j / stack::kGroup<T> * at.product.group;
        for (int i = 0; i < stack::kGroup<T>; ++i) piece[i] = j + i == k;
      }
    table_.norm(eq_, at.norm[stack::kPost], at.product, 0, d);
    walk_.post_squares_[index] = mean_square(at.product, d);
  }

  Walk& walk_;
  int64_t begin_, count_;
  const Kernels<T>& table_;
  const stack::Stack<T>& stack_;
  const stack::TapeArrays<T>& tape_;
  const stack::Equation& eq_;
  int64_t first_, blocks_;
  const Resources& resources_;
  int64_t alone_, slots_, memory_size_, scratch_size_;
  Buffer<T> memory_, scratch_;
  std::vector<Linearized<T>> linearized_;
  int64_t squares_at_;
};

template <class T>
Walk<T>::Walk(Target target, int64_t width, int64_t count, int64_t parts, bool orders)
    : target_(target),
      table_(kernels<T>(target)),
      width_(width),
      count_(count),
      parts_(parts),
      orders_(orders),
      row_(table_.row_size(width)),
      size_(width * row_),
      data_(count * parts * size_),
      exponents_(static_cast<size_t>(count)),
      lost_(static_cast<size_t>(count)) {
  std::fill_n(data_.get(), count * parts * size_, T(0));
  for (int64_t n = 0; n < count; ++n)
    for (int64_t k = 0; k < width; ++k) rows(n, 0).data[k * row_ + k] = 1;
}

template <class T>
void Walk<T>::advance(const stack::Stack<T>& stack, const stack::TapeArrays<T>& tape, int64_t first, int64_t blocks,
                      const Resources& resources) {
  check_passage(stack, width_, count_, first, blocks, resources.target, target_);
  Passage(*this, 0, stack, tape, first, blocks, resources).run();
  passed_ += blocks;
}

template <class T>
void Walk<T>::check(const stack::Stack<T>& stack, int64_t first, int64_t blocks, Target target) const {
  if (orders_) throw std::invalid_argument("a walk with orders goes by itself");
  check_passage(stack, width_, count_, first, blocks, target, target_);
}

template <class T>
void Walk<T>::carry(int64_t begin, const stack::Stack<T>& part, const stack::TapeArrays<T>& tape, int64_t blocks,
                    const Resources& resources) {
  Passage(*this, begin, part, tape, 0, blocks, resources).run();
}

template <class T>
void Walk<T>::copy(T* matrices, int64_t* exponents, const Resources& resources) const {
  std::copy(exponents_.begin(), exponents_.end(), exponents);
  const int64_t d = width_;
  parallel(resources.threads, count_ * parts_, [&](int64_t i, int) {
    if (resources.stop()) return;
    const T* const from = data_.get() + i * size_;
    T* const to = matrices + i * d * d;
    constexpr int64_t kSquare = 64 / static_cast<int64_t>(sizeof(T));
    for (int64_t r0 = 0; r0 < d; r0 += kSquare)
      for (int64_t c0 = 0; c0 < d; c0 += kSquare)
        for (int64_t r = r0; r < std::min(r0 + kSquare, d); ++r)
          for (int64_t c = c0; c < std::min(c0 + kSquare, d); ++c) to[r * d + c] = from[c * row_ + r];
  });
}

template <class T>
void Walk<T>::singular_values(T* values, int64_t* exponents, bool* converged, const Resources& resources) const {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const spectra::Batch batch{reinterpret_cast<const char*>(data_.get()),
                             {{count_ * parts_}, {size_ * kSize}},
                             width_,
                             width_,
                             row_ * kSize,
                             kSize};
  spectra::singular_values(batch, values, exponents, converged, resources);
  for (int64_t i = 0; i < count_ * parts_; ++i) exponents[i] += exponents_[static_cast<size_t>(i / parts_)];
}

template class Walk<float>;
template class Walk<double>;
template Kernels<float> kernels<float>(Target);
template Kernels<double> kernels<double>(Target);

}  // namespace depthgauge::jacobian
