// Accumulators of Jacobians, and their way through stacks, on NumPy arrays.
#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind/bind.hpp"
#include "bind/bound_stack.hpp"
#include "bind/call.hpp"
#include "jacobian/graded_accumulator.hpp"
#include "jacobian/jacobian_accumulator.hpp"
#include "jacobian/propagation.hpp"

namespace depthgauge {
namespace {

using jacobian::GradedAccumulator;
using jacobian::JacobianAccumulator;

void check_sizes(int64_t width, int64_t count) {
  if (width < 0 || count < 0) throw std::invalid_argument("sizes must not be negative");
}

template <class T>
JacobianAccumulator<T>* make_accumulator(const std::string& target, int64_t width, int64_t count, int64_t parts,
                                         bool orders) {
  check_sizes(width, count);
  if (parts < 1 || (!orders && parts > 1)) throw std::invalid_argument("parts must be 1, or more with orders");
  int64_t size = static_cast<int64_t>(sizeof(T));
  for (const int64_t factor : {width + 32, width + 32, count, parts})
    if (__builtin_mul_overflow(size, factor, &size)) throw std::invalid_argument("so many Jacobians fit no memory");
  return new JacobianAccumulator<T>(choose_target(target), width, count, parts, orders);
}

template <class T>
GradedAccumulator<T>* make_graded_accumulator(const std::string& target, int64_t width, int64_t hidden, int64_t count) {
  check_sizes(width, count);
  check_sizes(hidden, count);
  return new GradedAccumulator<T>(choose_target(target), width, hidden, count);
}

// Stacks, their states, (replicates, examples, width) each, which move on, and what follows each of them.
template <class T, class A>
void propagate(const std::vector<const BoundStack<T>*>& stacks, int64_t examples, const std::vector<py::array>& states,
               const std::vector<std::vector<A*>>& accumulators, int64_t first, int64_t blocks,
               const std::string& target, int threads) {
  if (examples < 0) throw std::invalid_argument("examples must not be negative");
  if (states.size() != stacks.size() || accumulators.size() != stacks.size())
    throw std::invalid_argument("there must be states and accumulators for each stack");
  std::vector<jacobian::Member<T, A>> members;
  for (size_t i = 0; i < stacks.size(); ++i) {
    if (!stacks[i]) throw std::invalid_argument("a stack is missing");
    const stack::Stack<T> stack = stacks[i]->with_examples(examples);
    const int64_t size = stack.replicates * stack.examples * stack.equation.width;
    if (std::find(accumulators[i].begin(), accumulators[i].end(), nullptr) != accumulators[i].end())
      throw std::invalid_argument("an accumulator is missing");
    members.push_back({stack, data_of<T>(states[i], "states", size, true), accumulators[i]});
  }
  run_released(target, threads,
               [&](const Resources& resources) { jacobian::propagate(members, first, blocks, resources); });
}

template <class T>
void copy(const JacobianAccumulator<T>& accumulator, const py::array& matrices, const py::array& exponents,
          const std::string& target, int threads) {
  const int64_t d = accumulator.width();
  T* const to = data_of<T>(matrices, "matrices", accumulator.count() * accumulator.parts() * d * d, true);
  int64_t* const exponent = data_of<int64_t>(exponents, "exponents", accumulator.count(), true);
  run_released(target, threads, [&](const Resources& resources) { accumulator.copy(to, exponent, resources); });
}

template <class T>
void singular_values(const JacobianAccumulator<T>& accumulator, const py::array& values, const py::array& exponents,
                     const py::array& converged, const std::string& target, int threads) {
  const int64_t count = accumulator.count() * accumulator.parts();
  T* const to = data_of<T>(values, "values", count * accumulator.width(), true);
  int64_t* const exponent = data_of<int64_t>(exponents, "exponents", count, true);
  bool* const flags = data_of<bool>(converged, "converged", count, true);
  run_released(target, threads,
               [&](const Resources& resources) { accumulator.singular_values(to, exponent, flags, resources); });
}

template <class T>
void log_singular_values(GradedAccumulator<T>& accumulator, const py::array& logs, const std::string& target,
                         int threads) {
  double* const to = data_of<double>(logs, "logs", accumulator.count() * accumulator.width(), true);
  run_released(target, threads, [&](const Resources& resources) { accumulator.log_singular_values(to, resources); });
}

// What was measured of the blocks passed so far.
template <class T>
void squares(const JacobianAccumulator<T>& accumulator, const py::array& branch, const py::array& post) {
  const std::vector<double>& b = accumulator.branch_squares();
  const std::vector<double>& p = accumulator.post_squares();
  std::copy(b.begin(), b.end(), data_of<double>(branch, "branch", static_cast<int64_t>(b.size()), true));
  std::copy(p.begin(), p.end(), data_of<double>(post, "post", static_cast<int64_t>(p.size()), true));
}

template <class T>
void bind_precision(py::module_& m, const std::string& suffix) {
  py::class_<JacobianAccumulator<T>>(m, ("JacobianAccumulator_" + suffix).c_str())
      .def(py::init(&make_accumulator<T>))
      .def_property_readonly("passed", [](const JacobianAccumulator<T>& accumulator) { return accumulator.passed(); })
      .def("copy", &copy<T>)
      .def("singular_values", &singular_values<T>)
      .def("squares", &squares<T>);
  py::class_<GradedAccumulator<T>>(m, ("GradedAccumulator_" + suffix).c_str())
      .def(py::init(&make_graded_accumulator<T>))
      .def("log_singular_values", &log_singular_values<T>);
  const std::string name = "propagate_" + suffix;
  m.def(name.c_str(), &propagate<T, JacobianAccumulator<T>>);
  m.def(name.c_str(), &propagate<T, GradedAccumulator<T>>);
}

}  // namespace

void bind_jacobian(py::module_& m) {
  bind_precision<float>(m, "float32");
  bind_precision<double>(m, "float64");
}

}  // namespace depthgauge
