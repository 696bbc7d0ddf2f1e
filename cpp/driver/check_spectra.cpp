// Singular values: memory, bits that depend on neither threads nor neighbors, and norms that stay.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "driver/checks.hpp"
#include "spectra/singular.hpp"

namespace depthgauge::driver {
namespace {

// Matrices of one shape, row by row or column by column, the last one first in memory that is full.
template <class T>
struct Matrices {
  Matrices(int64_t n, int64_t rows_, int64_t columns_, bool columns_first, uint64_t seed)
      : count(n), rows(rows_), columns(columns_), by_column(columns_first), entries(n * rows_ * columns_) {
    Random random(seed);
    const int64_t size = rows * columns;
    for (int64_t i = 0; i < count; ++i) {
      // Every third has rows that fall off, every fifth repeats its rows, every seventh is zero.
      T* const matrix = at(i);
      for (int64_t k = 0; k < size; ++k) {
        const int64_t row = by_column ? k % rows : k / columns;
        const double fade = i % 3 == 1 ? std::ldexp(1.0, static_cast<int>(-row)) : 1;
        matrix[k] = i % 7 == 6 ? T(0) : static_cast<T>(random.centered() * fade);
      }
      if (i % 5 == 4)
        for (int64_t k = 0; k < size; ++k)
          if ((by_column ? k % rows : k / columns) > 0) matrix[k] = matrix[by_column ? k / rows * rows : k % columns];
    }
  }
  spectra::Batch batch(int64_t first, int64_t n) const {
    constexpr auto kSize = static_cast<int64_t>(sizeof(T));
    return {reinterpret_cast<const char*>(n ? at(first) : entries.data()),
            {{n}, {-rows * columns * kSize}},
            rows,
            columns,
            by_column ? kSize : columns * kSize,
            by_column ? rows * kSize : kSize};
  }
  T* at(int64_t i) const { return entries.data() + (count - 1 - i) * rows * columns; }

  int64_t count, rows, columns;
  bool by_column;
  Array<T> entries;
};

template <class T>
struct Values {
  Values(const spectra::Batch& batch, const Resources& resources)
      : each(std::min(batch.rows, batch.columns)),
        values(batch.axes.count() * each),
        exponents(batch.axes.count()),
        converged(batch.axes.count()) {
    spectra::singular_values(batch, values.data(), exponents.data(), converged.data(), resources);
  }
  bool same(int64_t i, const Values& other, int64_t j) const {
    const size_t bytes = sizeof(T) * static_cast<size_t>(each);
    return std::memcmp(values.data() + i * each, other.values.data() + j * each, bytes) == 0 &&
           exponents[i] == other.exponents[j] && converged[i] == other.converged[j];
  }

  int64_t each;
  Array<T> values;
  Array<int64_t> exponents;
  Array<bool> converged;
};

template <class T>
void values_of_one_shape(int64_t count, int64_t rows, int64_t columns, Target target, uint64_t seed) {
  const Matrices<T> matrices(count, rows, columns, seed % 2 == 0, seed);
  const Values<T> all(matrices.batch(0, count), {target, 1, never()});
  const double tolerance = 200 * static_cast<double>(std::numeric_limits<T>::epsilon()) *
                           std::sqrt(1.0 + static_cast<double>(rows * columns));
  for (int64_t i = 0; i < count; ++i) {
    check(all.converged[i], "singular values converge");
    double squares = 0, norm = 0;
    bool ordered = true;
    for (int64_t j = 0; j < all.each; ++j) {
      const T value = all.values[i * all.each + j];
      ordered &= value >= 0 && (j == 0 || value <= all.values[i * all.each + j - 1]);
      squares += std::pow(std::ldexp(static_cast<double>(value), static_cast<int>(all.exponents[i])), 2);
    }
    for (int64_t k = 0; k < rows * columns; ++k) norm += std::pow(static_cast<double>(matrices.at(i)[k]), 2);
    check(ordered, "singular values are not negative and descend");
    check(std::abs(squares - norm) <= tolerance * norm,
          "the squares of singular values add up to those of the entries");
  }
  for (const int threads : {3, 7}) {
    const Values<T> threaded(matrices.batch(0, count), {target, threads, never()});
    bool same = true;
    for (int64_t i = 0; i < count; ++i) same &= threaded.same(i, all, i);
    check(same, "singular values have the same bits on any threads");
    if (rows * columns > 10000) break;
  }
  if (count == 0) return;
  Random random(seed + 1);
  const int64_t picked = random.below(count);
  const Values<T> alone(matrices.batch(picked, 1), {target, 2, never()});
  check(alone.same(0, all, picked), "singular values have the same bits alone");
  if (rows * columns == 0) return;
  // A bad entry anywhere costs its own matrix.
  const int64_t bad = random.below(count);
  const T poison = random.one_in(2) ? std::numeric_limits<T>::quiet_NaN() : -std::numeric_limits<T>::infinity();
  matrices.at(bad)[random.below(rows * columns)] = poison;
  const Values<T> rest(matrices.batch(0, count), {target, 2, never()});
  bool same = true, unknown = true;
  for (int64_t i = 0; i < count; ++i) same &= i == bad || rest.same(i, all, i);
  for (int64_t j = 0; j < rest.each; ++j) unknown &= std::isnan(rest.values[bad * rest.each + j]);
  check(same, "a bad matrix changes no other");
  check(unknown, "a bad matrix has no values");
}

template <class T>
void stopped_calls(int64_t count, int64_t rows, int64_t columns, Target target) {
  const Matrices<T> matrices(count, rows, columns, false, 9);
  for (int after = 0; after < 12; after += 1 + after / 4) {
    std::atomic<int> left{after * after};
    const Stop stop{[](void* self) { return static_cast<std::atomic<int>*>(self)->fetch_sub(1) <= 0; }, &left};
    Values<T>(matrices.batch(0, count), {target, 1 + after % 3, stop});
  }
}

}  // namespace

template <class T>
void check_spectra(Target target, bool quick) {
  struct Shape {
    int64_t count, rows, columns;
  };
  // Around the vector width, in lanes and by itself, tall and wide, with and without a triangular factor, and nothing.
  const Shape shapes[] = {{9, 1, 1},   {40, 2, 2},    {19, 3, 7},    {70, 8, 8},   {5, 17, 17}, {35, 33, 31},
                          {3, 64, 64}, {2, 230, 230}, {1, 220, 210}, {9, 500, 12}, {2, 3, 900}, {2, 400, 200},
                          {0, 4, 4},   {3, 0, 4},     {3, 4, 0},     {2, 1, 600}};
  uint64_t seed = 1;
  for (const Shape& shape : shapes) {
    ++seed;
    if (quick && shape.rows * shape.columns > 10000) continue;
    set_context("singular values of " + std::to_string(shape.count) + " of " + std::to_string(shape.rows) + " x " +
                std::to_string(shape.columns) + (sizeof(T) == 4 ? ", float, " : ", double, ") + name(target));
    values_of_one_shape<T>(shape.count, shape.rows, shape.columns, target, seed);
  }
  stopped_calls<T>(40, 20, 20, target);
  if (!quick) stopped_calls<T>(2, 220, 210, target);
}

template void check_spectra<float>(Target, bool);
template void check_spectra<double>(Target, bool);

}  // namespace depthgauge::driver
