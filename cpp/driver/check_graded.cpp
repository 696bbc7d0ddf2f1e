#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "driver/arrays.hpp"
#include "driver/checks.hpp"
#include "spectra/graded.hpp"

namespace depthgauge::driver {
namespace {

using spectra::Factors;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Countdown {
  std::atomic<int64_t> left;
  Stop stop() {
    return {[](void* self) { return static_cast<Countdown*>(self)->left.fetch_sub(1) <= 0; }, this};
  }
};

Resources call(Target target, int threads) { return {target, threads, never()}; }

// Factors of a batch of products, in exactly sized arrays.
template <class T>
class Chain {
 public:
  // sizes[l] columns and sizes[l + 1] rows; `decades` of scales on either side, one row or column in `zero_in` empty.
  Chain(Random& random, std::vector<int64_t> sizes, int64_t members, double decades, int64_t zero_in)
      : sizes_(std::move(sizes)), members_(members) {
    for (size_t l = 0; l + 1 < sizes_.size(); ++l) {
      const int64_t n = sizes_[l], m = sizes_[l + 1];
      Array<T> array(members * m * n);
      const bool by_columns = random.one_in(2);
      for (int64_t b = 0; b < members; ++b) {
        const auto draw = [&](int64_t count) {
          std::vector<double> scales;
          for (int64_t i = 0; i < count; ++i)
            scales.push_back(zero_in && random.one_in(zero_in) ? 0 : std::pow(10, decades * (random.uniform() - 0.5)));
          return scales;
        };
        const std::vector<double> rows = draw(m), columns = draw(n);
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j)
            array.data()[b * m * n + (by_columns ? j * m + i : i * n + j)] =
                static_cast<T>(rows[static_cast<size_t>(i)] * random.centered() * columns[static_cast<size_t>(j)]);
      }
      const auto size = static_cast<int64_t>(sizeof(T));
      factors_.push_back({{reinterpret_cast<const char*>(array.data()), m, n, (by_columns ? 1 : n) * size,
                           (by_columns ? m : 1) * size, sizeof(T) == sizeof(float)},
                          {{members}, {m * n * size}}});
      arrays_.push_back(std::move(array));
    }
  }

  T& at(size_t l, int64_t index) { return arrays_[l].data()[index]; }
  double entry(size_t l, int64_t b, int64_t i, int64_t j) const {
    const spectra::Factor& f = factors_[l].first;
    T value;
    const int64_t at = b * factors_[l].axes.strides[0] + i * f.row_stride + j * f.column_stride;
    std::memcpy(&value, f.data + at, sizeof value);
    return static_cast<double>(value);
  }
  int64_t depth() const { return static_cast<int64_t>(factors_.size()); }
  // Entries of the first factor of one product.
  int64_t entries() const { return sizes_[0] * sizes_[1]; }

  Array<double> logs(bool prefixes, const Resources& c) const {
    int64_t count = 0;
    for (size_t l = 1; l < sizes_.size(); ++l)
      if (prefixes || l + 1 == sizes_.size()) count = std::max(count, std::min(sizes_[0], sizes_[l]));
    Array<double> found(members_ * (prefixes ? depth() : 1) * count);
    spectra::log_singular_values(factors_, members_, prefixes, count, found.data(), c);
    return found;
  }

  Array<double> logs_alone(int64_t member, const Resources& c) const {
    std::vector<Factors> alone = factors_;
    for (Factors& f : alone) {
      f.first.data += member * f.axes.strides[0];
      f.axes.shape = {1};
    }
    Array<double> found(std::min(sizes_.front(), sizes_.back()));
    spectra::log_singular_values(alone, 1, false, found.size(), found.data(), c);
    return found;
  }

  Array<T> relative(const Resources& c) const {
    Array<T> found(members_ * std::min(sizes_[0], sizes_[1]));
    spectra::relative_singular_values(factors_[0], members_, found.data(), c);
    return found;
  }

 private:
  std::vector<int64_t> sizes_;
  int64_t members_;
  std::vector<Array<T>> arrays_;
  std::vector<Factors> factors_;
};

bool same_bits(const double* a, const double* b, int64_t count) {
  return std::memcmp(a, b, sizeof(double) * static_cast<size_t>(count)) == 0;
}

// log |det| of a square factor, by elimination in long double.
template <class T>
double log_determinant(const Chain<T>& chain, size_t l, int64_t b, int64_t n) {
  std::vector<long double> a;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) a.push_back(chain.entry(l, b, i, j));
  const auto at = [&](int64_t i, int64_t j) -> long double& { return a[static_cast<size_t>(i * n + j)]; };
  long double total = 0;
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t i = k; i < n; ++i)
      if (std::fabs(at(i, k)) > std::fabs(at(pivot, k))) pivot = i;
    for (int64_t j = 0; j < n; ++j) std::swap(at(k, j), at(pivot, j));
    total += std::log(std::fabs(at(k, k)));
    for (int64_t i = k + 1; i < n; ++i)
      for (int64_t j = n - 1; j >= k; --j) at(i, j) -= at(i, k) / at(k, k) * at(k, j);
  }
  return static_cast<double>(total);
}

template <class T>
void determinants(Random& random, Target target) {
  for (const int64_t n : {1, 2, 3, 4, 5, 8, 9, 16, 17, 33}) {
    const int64_t members = 2;
    const Chain<T> chain(random, std::vector<int64_t>(6, n), members, 0, 0);
    const Array<double> logs = chain.logs(false, call(target, 1));
    for (int64_t b = 0; b < members; ++b) {
      double total = 0, want = 0;
      for (int64_t i = 0; i < n; ++i) total += logs.data()[b * n + i];
      for (size_t l = 0; l < 5; ++l) want += log_determinant(chain, l, b, n);
      check(std::fabs(total - want) < 1e-9 * static_cast<double>(n), "the logs add up to that of the determinant");
    }
  }
}

template <class T>
void chains(Random& random, Target target) {
  for (int round = 0; round < 24; ++round) {
    std::vector<int64_t> sizes;
    const int64_t depth = 1 + random.below(5), members = random.below(6), widest = round % 4 ? 12 : 40;
    for (int64_t l = 0; l <= depth; ++l) sizes.push_back(random.one_in(12) ? 0 : 1 + random.below(widest));
    const double decades = round % 3 == 0 ? 0 : round % 3 == 1 ? 6 : sizeof(T) == sizeof(float) ? 30 : 200;
    Chain<T> chain(random, sizes, members, decades, round % 2 ? 5 : 0);
    const Array<double> logs = chain.logs(false, call(target, 1));
    const int64_t count = members ? logs.size() / members : 0;
    bool known = true, ordered = true;
    for (int64_t i = 0; i < logs.size(); ++i) {
      const double value = logs.data()[i];
      known &= std::isfinite(value) || value == -kInfinity;
      ordered &= i % count == 0 || value <= logs.data()[i - 1];
    }
    check(known, "logs are finite or minus infinity");
    check(ordered, "logs descend");
    if (members > 0) {
      const int64_t b = random.below(members);
      check(same_bits(chain.logs_alone(b, call(target, 1)).data(), logs.data() + b * count, count),
            "a product has the same bits alone");
    }
    const Array<double> prefixes = chain.logs(true, call(target, 1));
    check(same_bits(chain.logs(true, call(target, 3)).data(), prefixes.data(), prefixes.size()),
          "products have the same bits on any number of threads");
    const Array<T> values = chain.relative(call(target, 2));
    check(std::all_of(values.data(), values.data() + values.size(), [](T value) { return value >= 0; }),
          "singular values are not negative");
    for (int64_t stops = 0; stops < 40; stops += 1 + random.below(16)) {
      // What a stopped call leaves is unspecified, but it stays within its arrays.
      Countdown countdown{{stops}};
      chain.logs(true, {target, 2, countdown.stop()});
      Countdown again{{stops}};
      chain.relative({target, 2, again.stop()});
    }
    if (members == 0 || count == 0 || chain.entries() == 0) continue;
    chain.at(0, random.below(chain.entries())) = std::numeric_limits<T>::quiet_NaN();
    const Array<double> spoilt = chain.logs(false, call(target, 2));
    check(std::isnan(spoilt.data()[0]), "a product with a NaN is NaN");
    check(same_bits(spoilt.data() + count, logs.data() + count, logs.size() - count),
          "a NaN leaves the other products alone");
  }
}

}  // namespace

template <class T>
void check_graded(Target target) {
  set_context(std::string("graded ") + (sizeof(T) == sizeof(float) ? "float" : "double") + " on " + name(target));
  Random random(11);
  determinants<T>(random, target);
  chains<T>(random, target);
}

template void check_graded<float>(Target);
template void check_graded<double>(Target);

}  // namespace depthgauge::driver
