// One case as data, and its forward, vjp and jvp.
#pragma once

#include "driver/cases.hpp"
#include "stack/tape_layout.hpp"

namespace depthgauge::driver {

using stack::kFields;
using stack::kPlaces;

inline const std::vector<double> kLevels = {0, 0.3, 1};

// Examples [first, first + count).
struct Span {
  int64_t first, count;
};

// Everything that a call is given.
template <class T>
class Problem {
 public:
  explicit Problem(const Case& c);

  const Case& options() const { return case_; }
  stack::Stack<T> stack_of(Span span) const;
  Span all() const { return {0, case_.examples}; }
  const int64_t* x_of() const { return x_of_.data(); }
  const T* parameter(int field, int64_t set, int64_t layer) const;
  const RowArray<T>& x() const { return x_; }
  const RowArray<T>& cotangent() const { return cotangent_; }
  const RowArray<T>& tangent() const { return tangent_; }

  // Puts a value into one example of all that goes in.
  void poison(int64_t example, T value);
  std::vector<Bytes> inputs() const;

 private:
  void fill_parameters(Random& random);
  bool has(int field) const;
  T draw_parameter(int field, Random& random) const;

  Case case_;
  int64_t sets_;
  Array<T> branch_scale_, skip_scale_, values_[kFields];
  Array<int64_t> set_of_, x_of_, index_[kFields];
  RowArray<T> x_, cotangent_, tangent_;
};

#define DG_ARRAY(name, type, of) Array<type> name;

// What a forward pass leaves.
template <class T>
class ForwardRun {
 public:
  ForwardRun(const Problem<T>& problem, Span span, bool keep, const Resources& resources);
  stack::TapeArrays<T> tape() const;
  std::vector<Bytes> results() const;
  std::vector<Bytes> tape_bytes() const;

  Array<T> output;
  DG_FORWARD_STATISTICS(DG_ARRAY)
  Array<double> quantiles;

 private:
  Array<double> derivative_quantiles_, cosine_;
  // Each part of the tape by itself, so that to overrun one shows.
  Array<char, 64> tape_[stack::TapeLayout<T>::kParts];
};

enum class WeightGradients { none, full, rms };

template <class T>
class VjpRun {
 public:
  VjpRun(const Problem<T>& problem, Span span, const ForwardRun<T>& forwarded, WeightGradients mode,
         const Resources& resources);
  std::vector<Bytes> results() const;

  Array<T> input_gradient;
  DG_VJP_STATISTICS(DG_ARRAY)
  Array<double> quantiles;
  Array<T> weights[kFields];
  Array<double> weight_rms[kFields], branch_scale, skip_scale;
};

#undef DG_ARRAY

template <class T>
class JvpRun {
 public:
  JvpRun(const Problem<T>& problem, Span span, const ForwardRun<T>& forwarded, const Resources& resources);
  std::vector<Bytes> results() const { return {bytes_of("tangent", output), bytes_of("rms", rms)}; }

  Array<T> output;
  Array<double> rms;
};

}  // namespace depthgauge::driver
