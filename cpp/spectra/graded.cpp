#include "spectra/graded.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "common/buffer.hpp"
#include "common/dispatch.hpp"
#include "common/thread_pool.hpp"

namespace depthgauge::spectra {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What each thread works in.
struct Workers {
  Workers(const GradedKernels& table, const GradedSizes& sizes, int64_t members, int threads)
      : count(static_cast<int>(std::clamp<int64_t>(members, 1, threads))),
        rank(sizes.rank),
        bytes((table.memory(sizes) + 63) / 64 * 64),
        memory(count * bytes),
        values(count * rank),
        exponents(count * rank) {}
  int count;
  int64_t rank, bytes;
  Buffer<char> memory;
  Buffer<double> values;
  Buffer<int64_t> exponents;
};

GradedSizes sizes_of(const Factors* factors, size_t count) {
  const Factor& first = factors[0].first;
  GradedSizes sizes{first.columns, std::min(first.rows, first.columns), 0, 0, count > 1};
  for (size_t l = 0; l < count; ++l) {
    const Factor& f = factors[l].first;
    sizes.rows = std::max(sizes.rows, f.rows);
    sizes.entries = std::max(sizes.entries, (f.rows + 15) * (f.columns + 15));
  }
  return sizes;
}

Factor member(const Factors& factors, int64_t index) {
  Factor f = factors.first;
  f.data += factors.axes.offset(index);
  return f;
}

}  // namespace

GradedKernels graded_kernels(Target target) {
  GradedKernels table;
  DG_DISPATCH(target, get_graded_kernels(&table))
  return table;
}

void write_logs(const double* values, const int64_t* exponents, int64_t found, int64_t wanted, double* logs) {
  for (int64_t i = 0; i < wanted; ++i)
    logs[i] = i < found ? static_cast<double>(exponents[i]) * M_LN2 + std::log(values[i])
                        : -std::numeric_limits<double>::infinity();
}

bool chained(const std::vector<Factors>& factors) {
  for (size_t l = 1; l < factors.size(); ++l)
    if (factors[l].first.columns != factors[l - 1].first.rows) return false;
  return true;
}

void log_singular_values(const std::vector<Factors>& factors, int64_t members, bool prefixes, int64_t count,
                         double* logs, const Resources& call) {
  if (factors.empty() || !chained(factors)) throw std::invalid_argument("factors must chain");
  const GradedKernels table = graded_kernels(call.target);
  const GradedSizes sizes = sizes_of(factors.data(), factors.size());
  const Workers workers(table, sizes, members, call.threads);
  const int64_t depth = static_cast<int64_t>(factors.size()), results = prefixes ? depth : 1;
  parallel(workers.count, members, [&](int64_t b, int worker) {
    double* out = logs + b * results * count;
    std::fill_n(out, results * count, kNan);
    GradedProduct product;
    table.start(&product, sizes, workers.memory.get() + worker * workers.bytes);
    double* const values = workers.values.get() + worker * workers.rank;
    int64_t* const exponents = workers.exponents.get() + worker * workers.rank;
    for (int64_t l = 0; l < depth && !call.stop(); ++l) {
      const Factor f = member(factors[static_cast<size_t>(l)], b);
      if (!table.multiply(&product, f, call.stop)) return;
      if (!prefixes && l < depth - 1) continue;
      const int64_t found = table.singular_values(&product, values, exponents, call.stop);
      write_logs(values, exponents, found, std::min({f.rows, sizes.width, count}), out);
      out += count;
    }
  });
}

template <class T>
void relative_singular_values(const Factors& matrices, int64_t members, T* values, const Resources& call) {
  const GradedKernels table = graded_kernels(call.target);
  const GradedSizes sizes = sizes_of(&matrices, 1);
  const Workers workers(table, sizes, members, call.threads);
  parallel(workers.count, members, [&](int64_t b, int worker) {
    if (call.stop()) return;
    T* const out = values + b * workers.rank;
    GradedProduct product;
    table.start(&product, sizes, workers.memory.get() + worker * workers.bytes);
    if (!table.multiply(&product, member(matrices, b), call.stop)) {
      std::fill_n(out, workers.rank, std::numeric_limits<T>::quiet_NaN());
      return;
    }
    double* const fractions = workers.values.get() + worker * workers.rank;
    int64_t* const exponents = workers.exponents.get() + worker * workers.rank;
    const int64_t found = table.singular_values(&product, fractions, exponents, call.stop);
    for (int64_t i = 0; i < workers.rank; ++i)
      out[i] = i < found ? static_cast<T>(std::ldexp(fractions[i], static_cast<int>(exponents[i]))) : T{0};
  });
}

template void relative_singular_values<float>(const Factors&, int64_t, float*, const Resources&);
template void relative_singular_values<double>(const Factors&, int64_t, double*, const Resources&);

}  // namespace depthgauge::spectra
