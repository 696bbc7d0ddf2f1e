#include "jacobian/graded_accumulator.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "common/thread_pool.hpp"
#include "jacobian/jacobian_accumulator.hpp"
#include "spectra/graded.hpp"

namespace depthgauge::jacobian {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What turns tangents, which are rows, as a factor of columns.
template <class T>
spectra::Factor transposed(const Tiles<T>& rows, int64_t count, int64_t columns) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  return {reinterpret_cast<const char*>(rows.data), columns, count, kSize, rows.row * kSize, sizeof(T) == 4};
}

}  // namespace

template <class T>
GradedAccumulator<T>::GradedAccumulator(Target target, int64_t width, int64_t hidden, int64_t count)
    : Accumulator(target, width, count),
      table_(kernels<T>(target)),
      graded_(spectra::graded_kernels(target)),
      hidden_(hidden),
      sizes_{width, width, std::max(width, hidden), (std::max(width, hidden) + 15) * (width + 15), true},
      bytes_((graded_.memory(sizes_) + 63) / 64 * 64),
      memory_(bytes_ * count),
      products_(static_cast<size_t>(count)),
      finite_(static_cast<size_t>(count), 1) {
  for (int64_t n = 0; n < count; ++n)
    graded_.start(&products_[static_cast<size_t>(n)], sizes_, memory_.get() + n * bytes_);
}

template <class T>
void GradedAccumulator<T>::check(const stack::Stack<T>& stack, Target target) const {
  Accumulator::check(stack, target);
  if (stack.equation.hidden > hidden_)
    throw std::invalid_argument("the stack has more hidden units than the accumulator");
}

template <class T>
void GradedAccumulator<T>::advance(const std::vector<Task<T, GradedAccumulator>>& tasks, int64_t blocks,
                                   const Resources& resources) {
  if (tasks.empty()) return;
  const GradedAccumulator& one = *tasks[0].accumulator;
  const Kernels<T>& table = one.table_;
  const int64_t width = one.width_, row = table.row_size(width);
  const int64_t workspace_size = table.block_workspace(tasks[0].tape->equation());
  const Buffer<T> workspace(workspace_size * resources.threads), products(width * row * resources.threads);
  parallel(resources.threads, static_cast<int64_t>(tasks.size()), [&](int64_t i, int worker) {
    const Task<T, GradedAccumulator>& task = tasks[static_cast<size_t>(i)];
    const stack::Equation& eq = task.tape->equation();
    const Tiles<T> product{products.get() + worker * width * row, row, stack::kGroup<T>};
    char& finite = task.accumulator->finite_[static_cast<size_t>(task.number())];
    for (int64_t l = 0; l < blocks && finite && !resources.stop(); ++l) {
      // Without a skip path ranks are lost where units are dead, and only two factors show it.
      const bool separate = task.tape->layer(l).skip_scale == 0 && eq.branch != stack::Branch::linear;
      Linearized<T> at;
      task.tape->linearize(table, l, task.lane, separate ? Request::separate : Request::whole,
                           workspace.get() + worker * workspace_size, &at);
      finite = !task.tape->is_lost(l, task.lane) &&
               task.accumulator->multiply(task.number(), eq, at, product, resources.stop);
    }
  });
}

template <class T>
bool GradedAccumulator<T>::multiply(int64_t example, const stack::Equation& eq, const Linearized<T>& at,
                                    const Tiles<T>& product, const Stop& stop) {
  spectra::GradedProduct* const to = &products_[static_cast<size_t>(example)];
  const RowNorm<T>& post = at.norm[stack::kPost];
  if (at.skip == 0 && eq.branch != stack::Branch::linear) {
    table_.norm(eq, post, at.c, 0, at.live);
    return graded_.multiply(to, transposed(at.a, width_, at.live), stop) &&
           graded_.multiply(to, transposed(at.c, at.live, width_), stop);
  }
  in_portions(width_, stop, [&](int64_t from, int64_t to) { table_.form(eq, at, from, to, at.skip, product); });
  table_.norm(eq, post, product, 0, width_);
  return graded_.multiply(to, transposed(product, width_, width_), stop);
}

template <class T>
void GradedAccumulator<T>::log_singular_values(double* logs, const Resources& resources) {
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
    const int64_t found = graded_.singular_values(&products_[static_cast<size_t>(n)], value, exponent, resources.stop);
    spectra::write_logs(value, exponent, found, width_, out);
  });
}

template class GradedAccumulator<float>;
template class GradedAccumulator<double>;

}  // namespace depthgauge::jacobian
