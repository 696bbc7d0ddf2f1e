// Jacobians carried through stacks, on NumPy arrays.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "bind/bind.hpp"
#include "bind/call.hpp"
#include "bind/bound_stack.hpp"
#include "bind/bound_tape.hpp"
#include "jacobian/graded_walk.hpp"
#include "jacobian/walk.hpp"
#include "jacobian/walks.hpp"

namespace depthgauge {
namespace {

using jacobian::GradedWalk;
using jacobian::Walk;

void check_sizes(int64_t width, int64_t count) {
  if (width < 0 || count < 0) throw std::invalid_argument("sizes must not be negative");
}

template <class T>
Walk<T>* make_walk(const std::string& target, int64_t width, int64_t count, int64_t parts, bool orders) {
  check_sizes(width, count);
  if (parts < 1 || (!orders && parts > 1)) throw std::invalid_argument("parts must be 1, or more with orders");
  return new Walk<T>(choose_target(target), width, count, parts, orders);
}

template <class T>
GradedWalk<T>* make_graded_walk(const std::string& target, int64_t width, int64_t hidden, int64_t count) {
  check_sizes(width, count);
  check_sizes(hidden, count);
  return new GradedWalk<T>(choose_target(target), width, hidden, count);
}

template <class T, template <class> class W>
void advance(W<T>& walk, const BoundStack<T>& bound, const BoundTape<T>& tape, int64_t first, int64_t blocks,
             const std::string& target, int threads) {
  const stack::Stack<T> stack = bound.with_examples(tape.examples());
  const stack::TapeArrays<T>& arrays = tape.of(stack);
  run_released(target, threads,
               [&](const Resources& resources) { walk.advance(stack, arrays, first, blocks, resources); });
}

// Walks, their stacks and their states, (replicates, examples, width) each, which move on with them.
template <class T>
void advance_walks(const py::list& walks, const py::list& stacks, int64_t examples, const py::list& states,
                   int64_t first, int64_t blocks, const std::string& target, int threads) {
  if (stacks.size() != walks.size() || states.size() != walks.size() || examples < 0)
    throw std::invalid_argument("there must be a stack and states for each walk");
  std::vector<jacobian::Traveler<T>> travelers;
  for (size_t i = 0; i < walks.size(); ++i) {
    const stack::Stack<T> stack = stacks[i].cast<const BoundStack<T>&>().with_examples(examples);
    const int64_t size = stack.replicates * stack.examples * stack.equation.width;
    travelers.push_back(
        {walks[i].cast<Walk<T>*>(), stack, data_of<T>(states[i].cast<py::array>(), "states", size, true)});
  }
  run_released(target, threads, [&](const Resources& resources) {
    jacobian::advance_walks(travelers, first, blocks, resources);
  });
}

template <class T>
void copy(const Walk<T>& walk, const py::array& matrices, const py::array& exponents, const std::string& target,
          int threads) {
  const int64_t d = walk.width();
  T* const to = data_of<T>(matrices, "matrices", walk.count() * walk.parts() * d * d, true);
  int64_t* const exponent = data_of<int64_t>(exponents, "exponents", walk.count(), true);
  run_released(target, threads, [&](const Resources& resources) { walk.copy(to, exponent, resources); });
}

template <class T>
void singular_values(const Walk<T>& walk, const py::array& values, const py::array& exponents,
                     const py::array& converged, const std::string& target, int threads) {
  const int64_t count = walk.count() * walk.parts();
  T* const to = data_of<T>(values, "values", count * walk.width(), true);
  int64_t* const exponent = data_of<int64_t>(exponents, "exponents", count, true);
  bool* const flags = data_of<bool>(converged, "converged", count, true);
  run_released(target, threads,
               [&](const Resources& resources) { walk.singular_values(to, exponent, flags, resources); });
}

template <class T>
void log_singular_values(GradedWalk<T>& walk, const py::array& logs, const std::string& target, int threads) {
  double* const to = data_of<double>(logs, "logs", walk.count() * walk.width(), true);
  run_released(target, threads, [&](const Resources& resources) { walk.log_singular_values(to, resources); });
}

// What was measured of the blocks passed so far.
template <class T>
void squares(const Walk<T>& walk, const py::array& branch, const py::array& post) {
  const std::vector<double>& b = walk.branch_squares();
  const std::vector<double>& p = walk.post_squares();
  std::copy(b.begin(), b.end(), data_of<double>(branch, "branch", static_cast<int64_t>(b.size()), true));
  std::copy(p.begin(), p.end(), data_of<double>(post, "post", static_cast<int64_t>(p.size()), true));
}

template <class T>
void bind_precision(py::module_& m, const std::string& suffix) {
  py::class_<Walk<T>>(m, ("Walk_" + suffix).c_str())
      .def(py::init(&make_walk<T>))
      .def("advance", &advance<T, Walk>)
      .def("copy", &copy<T>)
      .def("singular_values", &singular_values<T>)
      .def("squares", &squares<T>);
  m.def(("advance_walks_" + suffix).c_str(), &advance_walks<T>);
  py::class_<GradedWalk<T>>(m, ("GradedWalk_" + suffix).c_str())
      .def(py::init(&make_graded_walk<T>))
      .def("advance", &advance<T, GradedWalk>)
      .def("log_singular_values", &log_singular_values<T>);
}

}  // namespace

void bind_jacobian(py::module_& m) {
  bind_precision<float>(m, "float32");
  bind_precision<double>(m, "float64");
}

}  // namespace depthgauge
