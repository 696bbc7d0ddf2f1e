// The passes over whole stacks, on NumPy arrays.
#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind/bind.hpp"
#include "bind/call.hpp"
#include "bind/stack_arrays.hpp"

namespace py = pybind11;

namespace depthgauge {
namespace {

using namespace stack;

std::vector<double> read_quantiles(const py::dict& results) {
  if (!results.contains("quantiles")) return {};
  auto levels = results["quantiles"].cast<std::vector<double>>();
  if (!std::all_of(levels.begin(), levels.end(), [](double q) { return q >= 0 && q <= 1; }))
    throw std::invalid_argument("quantiles must lie in [0, 1]");
  return levels;
}

// Returns the tape, if states are to be kept.
template <class T>
py::object run_forward(const py::dict& problem, const py::array& x, const py::array& x_of, const std::string& keep,
                       const py::dict& results, const std::string& target, int threads) {
  const Stack<T> stack = read_stack<T>(problem);
  const int64_t R = stack.replicates, L = stack.depth, B = stack.examples, d = stack.equation.width;
  const int64_t inputs = x.ndim() == 3 ? x.shape(0) : 0;
  const Rows<T> rows = read_rows<T>(x, {inputs, B, d}, "x");
  const int64_t* from = data_of<int64_t>(x_of, "x_of", R, false);
  check_indices(from, R, inputs, "x_of");
  if (keep != "states" && keep != "activations" && keep != "nothing")
    throw std::invalid_argument("keep='" + keep + "' is unknown to the native backend");
  const py::object tape = keep == "nothing" ? py::object(py::none()) : new_tape(stack, keep == "activations");
  const TapeArrays<T> arrays = tape.is_none() ? TapeArrays<T>{} : read_tape(stack, tape.cast<py::dict>(), true);
  ForwardResults<T> out{};
  out.quantiles = read_quantiles(results);
  const auto Q = static_cast<int64_t>(out.quantiles.size());
  out.output = needed<T>(results, "output", R * B * d, true);
  out.rms = needed<double>(results, "rms", R * (L + 1), true);
  out.max_abs = needed<double>(results, "max_abs", R * (L + 1), true);
  out.batch_mean_norm = needed<double>(results, "batch_mean_norm", R * (L + 1), true);
  out.nonfinite = needed<int64_t>(results, "nonfinite", R * (L + 1), true);
  out.branch_rms = needed<double>(results, "branch_rms", R * L, true);
  out.live_fraction = needed<double>(results, "live_fraction", R * L, true);
  out.dead_units = needed<double>(results, "dead_units", R * L, true);
  out.saturation = needed<double>(results, "saturation", R * L, true);
  if (Q) {
    out.state_quantiles = needed<double>(results, "state_quantiles", R * (L + 1) * Q, true);
    out.derivative_quantiles = needed<double>(results, "derivative_quantiles", R * L * Q, true);
  }
  out.cosine = entry<double>(results, "cosine", R * (L + 1), true);
  run_released(target, threads,
               [&](const Resources& resources) { forward(stack, rows, from, arrays, out, resources); });
  return tape;
}

template <class T>
void run_vjp(const py::dict& problem, const py::dict& tape, const py::array& cotangent, const py::dict& results,
                 const std::string& target, int threads) {
  const Stack<T> stack = read_stack<T>(problem);
  const int64_t R = stack.replicates, L = stack.depth, B = stack.examples, d = stack.equation.width;
  const int64_t P = cotangent.ndim() == 4 ? cotangent.shape(0) : 0;
  const Rows<T> rows = read_rows<T>(cotangent, {P, R, B, d}, "cotangent");
  const TapeArrays<T> arrays = read_tape(stack, tape, false);
  VjpResults<T> out{};
  out.quantiles = read_quantiles(results);
  out.input_gradient = needed<T>(results, "input_gradient", P * R * B * d, true);
  out.rms = needed<double>(results, "rms", P * R * (L + 1), true);
  out.max_abs = needed<double>(results, "max_abs", P * R * (L + 1), true);
  out.nonfinite = needed<int64_t>(results, "nonfinite", P * R * (L + 1), true);
  if (!out.quantiles.empty())
    out.gradient_quantiles = needed<double>(results, "gradient_quantiles",
                                            P * R * (L + 1) * static_cast<int64_t>(out.quantiles.size()), true);
  out.only_rms = results.contains("weight_rms");
  out.weight_gradients = out.only_rms || results.contains("weights");
  if (out.weight_gradients) {
    if (P != 1) throw std::invalid_argument("weight gradients take one probe");
    const py::dict arrays_of = results[out.only_rms ? "weight_rms" : "weights"];
    for (int field = 0; field < kFields; ++field) {
      if (!stack.fields[field].data) continue;
      if (out.only_rms)
        out.weight_rms[field] = needed<double>(arrays_of, kFieldNames[field], R * L, true);
      else
        out.weights[field] =
            needed<T>(arrays_of, kFieldNames[field], stack.sets * L * stack.field_size(field), true);
    }
    if (!out.only_rms) {
      out.branch_scale = needed<double>(results, "branch_scale", R * L, true);
      out.skip_scale = needed<double>(results, "skip_scale", R * L, true);
    }
  }
  run_released(target, threads,
               [&](const Resources& resources) { vjp(stack, arrays, P, rows, out, resources); });
}

template <class T>
void run_jvp(const py::dict& problem, const py::dict& tape, const py::array& vectors, const py::dict& results,
                 const std::string& target, int threads) {
  const Stack<T> stack = read_stack<T>(problem);
  const int64_t R = stack.replicates, B = stack.examples, d = stack.equation.width;
  const int64_t P = vectors.ndim() == 4 ? vectors.shape(0) : 0;
  const Rows<T> rows = read_rows<T>(vectors, {P, R, B, d}, "tangent");
  const TapeArrays<T> arrays = read_tape(stack, tape, false);
  JvpResults<T> out{};
  out.output = needed<T>(results, "output", P * R * B * d, true);
  out.rms = needed<double>(results, "rms", P * R * (stack.depth + 1), true);
  run_released(target, threads,
               [&](const Resources& resources) { jvp(stack, arrays, P, rows, out, resources); });
}

template <class T>
void bind_precision(py::module_& m, const std::string& suffix) {
  m.def(("forward_" + suffix).c_str(), &run_forward<T>);
  m.def(("vjp_" + suffix).c_str(), &run_vjp<T>);
  m.def(("jvp_" + suffix).c_str(), &run_jvp<T>);
}

}  // namespace

void bind_stack(py::module_& m) {
  bind_precision<float>(m, "float32");
  bind_precision<double>(m, "float64");
}

}  // namespace depthgauge
