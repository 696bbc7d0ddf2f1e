#include "jacobian/graded_walk.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "common/thread_pool.hpp"
#include "jacobian/example.hpp"
#include "jacobian/walk.hpp"
#include "spectra/graded.hpp"

namespace depthgauge::jacobian {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What turns tangents, which are rows, as a factor of columns.
template <class T>
spectra::Factor transposed(const Pieces<T>& rows, int64_t count, int64_t columns) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  return {reinterpret_cast<const char*>(rows.data), columns, count, kSize, rows.row * kSize, sizeof(T) == 4};
}

}  // namespace

template <class T>
GradedWalk<T>::GradedWalk(Target target, int64_t width, int64_t hidden, int64_t count)
    : target_(target),
      table_(kernels<T>(target)),
      graded_(spectra::graded_kernels(target)),
      width_(width),
      hidden_(hidden),
      count_(count),
      sizes_{width, width, std::max(width, hidden), (std::max(width, hidden) + 15) * (width + 15), true},
      bytes_((graded_.memory(sizes_) + 63) / 64 * 64),
      memory_(bytes_ * count),
      products_(static_cast<size_t>(count)),
      finite_(static_cast<size_t>(count), 1) {
  for (int64_t n = 0; n < count; ++n)
    graded_.start(&products_[static_cast<size_t>(n)], sizes_, memory_.get() + n * bytes_);
}

template <class T>
void GradedWalk<T>::advance(const stack::Stack<T>& stack, const stack::TapeArrays<T>& tape, int64_t first,
                            int64_t blocks, const Resources& resources) {
  const stack::Equation& eq = stack.equation;
  check_passage(stack, width_, count_, first, blocks, resources.target, target_);
  if (eq.hidden > hidden_) throw std::invalid_argument("the stack has more hidden units than the walk");
  const int64_t memory_size = table_.memory(eq), row = table_.row_size(width_);
  const Buffer<T> memory(memory_size * resources.threads), products(width_ * row * resources.threads);
  parallel(resources.threads, count_, [&](int64_t n, int worker) {
    const Example<T> example(stack, tape, n);
    const Pieces<T> product{products.get() + worker * width_ * row, row, stack::kGroup<T>};
    char& finite = finite_[static_cast<size_t>(n)];
    for (int64_t l = first; l < first + blocks && finite && !resources.stop(); ++l) {
      // Without a skip path ranks are lost where units are dead, and only two factors show it.
      const bool separate = example.layer(l).skip_scale == 0 && eq.branch != stack::Branch::linear;
      Linearized<T> at;
      example.linearize(table_, l, separate ? Request::separate : Request::whole, memory.get() + worker * memory_size,
                        &at);
      finite = !example.is_lost(l + 1) && multiply(n, eq, at, product, resources);
    }
  });
  passed_ += blocks;
}

template <class T>
bool GradedWalk<T>::multiply(int64_t example, const stack::Equation& eq, const Linearized<T>& at,
                             const Pieces<T>& product, const Resources& resources) {
  spectra::GradedProduct* const to = &products_[static_cast<size_t>(example)];
  const RowNorm<T>& post = at.norm[stack::kPost];
  if (at.skip == 0 && eq.branch != stack::Branch::linear) {
    table_.norm(eq, post, at.c, 0, at.live);
    return graded_.multiply(to, transposed(at.a, width_, at.live), resources.stop) &&
           graded_.multiply(to, transposed(at.c, at.live, width_), resources.stop);
  }
  in_portions(width_, resources.stop,
              [&](int64_t from, int64_t to) { table_.form(eq, at, from, to, at.skip, product); });
  table_.norm(eq, post, product, 0, width_);
  return graded_.multiply(to, transposed(product, width_, width_), resources.stop);
}

template <class T>
void GradedWalk<T>::log_singular_values(double* logs, const Resources& resources) {
  if (passed_ == 0) {
    std::fill_n(logs, count_ * width_, 0.0);
    return;
  }
  const Buffer<double> values(width_ * resources.threads);
  const Buffer<int64_t> exponents(width_ * resources.threads);
  parallel(resources.threads, count_, [&](int64_t n, int worker) {
    if (resources.stop()) return;
    double* const out = logs + n * width_;
    if (!finite_[static_cast<size_t>(n)]) {
      std::fill_n(out, width_, kNan);
      return;
    }
    double* const value = values.get() + worker * width_;
    int64_t* const exponent = exponents.get() + worker * width_;
    const int64_t found =
        graded_.singular_values(&products_[static_cast<size_t>(n)], value, exponent, resources.stop);
    spectra::write_logs(value, exponent, found, width_, out);
  });
}

template class GradedWalk<float>;
template class GradedWalk<double>;

}  // namespace depthgauge::jacobian
