// The passes over whole stacks, on NumPy arrays.
//
// A stack, a tape and a set of results each come as a dict of arrays.  Every array is checked here again for dtype,
// layout and size, so that a mistake in Python raises and never reads or writes where it should not.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind/bind.hpp"
#include "bind/interrupt.hpp"
#include "stack/transport.hpp"

namespace py = pybind11;

namespace depthgauge {
namespace {

using namespace stack;

template <class E>
E parse(const std::string& what, const std::string& text, const std::map<std::string, E>& options) {
  const auto found = options.find(text);
  if (found == options.end()) throw std::invalid_argument(what + "='" + text + "' is unknown to the native backend");
  return found->second;
}

Branch parse_branch(const std::string& text) {
  static const std::map<std::string, Branch> options = {
      {"mlp", Branch::mlp}, {"linear", Branch::linear}, {"gated", Branch::gated}};
  return parse("branch", text, options);
}

Norm parse_norm(const std::string& place, const std::string& text) {
  static const std::map<std::string, Norm> options = {{"none", Norm::none},
                                                      {"rms", Norm::rms},
                                                      {"layer", Norm::layer},
                                                      {"center", Norm::center},
                                                      {"dyt", Norm::dyt},
                                                      {"rms_detached", Norm::rms_detached},
                                                      {"layer_detached", Norm::layer_detached}};
  return parse(place, text, options);
}

Activation parse_activation(const std::string& text) {
  static const std::map<std::string, Activation> options = {{"relu", Activation::relu},
                                                            {"leaky_relu", Activation::leaky_relu},
                                                            {"tanh", Activation::tanh},
                                                            {"sigmoid", Activation::sigmoid},
                                                            {"gelu", Activation::gelu},
                                                            {"gelu_tanh", Activation::gelu_tanh},
                                                            {"silu", Activation::silu},
                                                            {"abs", Activation::abs},
                                                            {"identity", Activation::identity}};
  return parse("activation", text, options);
}

const char* const kFieldNames[kFields] = {"up",         "down",      "gate",         "b_up",
                                          "b_down",     "b_gate",    "pre_gain",     "output_gain",
                                          "post_gain",  "pre_shift", "output_shift", "post_shift"};

// The data of a C-order array of the right type with `count` elements.
template <class T>
T* data_of(py::handle object, const std::string& what, int64_t count, bool writable) {
  if (!py::isinstance<py::array_t<T>>(object))
    throw std::invalid_argument(what + " must be an array of " + std::string(py::str(py::dtype::of<T>())));
  const py::array array = py::reinterpret_borrow<py::array>(object);
  if (!(array.flags() & py::array::c_style)) throw std::invalid_argument(what + " must be C-contiguous");
  if (static_cast<int64_t>(array.size()) != count)
    throw std::invalid_argument(what + " must have " + std::to_string(count) + " elements, not " +
                                std::to_string(array.size()));
  if (writable && !array.writeable()) throw std::invalid_argument(what + " must be writable");
  return static_cast<T*>(const_cast<void*>(array.data()));
}

// An optional entry of a dict: null where it is absent or None.
template <class T>
T* entry(const py::dict& d, const char* key, int64_t count, bool writable) {
  if (!d.contains(key) || d[key].is_none()) return nullptr;
  return data_of<T>(d[key], key, count, writable);
}

template <class T>
T* needed(const py::dict& d, const char* key, int64_t count, bool writable) {
  T* found = entry<T>(d, key, count, writable);
  if (!found) throw std::invalid_argument(std::string(key) + " is missing");
  return found;
}

void check_indices(const int64_t* index, int64_t count, int64_t below, const std::string& what) {
  if (!std::all_of(index, index + count, [&](int64_t i) { return i >= 0 && i < below; }))
    throw std::invalid_argument(what + " points outside its array");
}

int64_t dimension(const py::dict& d, const char* key) {
  const auto value = d[key].cast<int64_t>();
  if (value < 0) throw std::invalid_argument(std::string(key) + " must not be negative");
  return value;
}

template <class T>
Stack<T> read_stack(const py::dict& d) {
  Stack<T> stack{};
  Equation& eq = stack.equation;
  eq.branch = parse_branch(d["branch"].cast<std::string>());
  eq.activation = parse_activation(d["activation"].cast<std::string>());
  const char* const places[kPlaces] = {"pre_norm", "output_norm", "post_norm"};
  for (int place = 0; place < kPlaces; ++place)
    eq.norm[place] = parse_norm(places[place], d[places[place]].cast<std::string>());
  // Scalars are rounded once to the arrays' precision.
  const auto scalar = [&](const char* key) { return static_cast<double>(static_cast<T>(d[key].cast<double>())); };
  eq.eps = scalar("eps");
  eq.slope = scalar("slope");
  eq.dyt_alpha = scalar("dyt_alpha");
  eq.weight_scale = scalar("weight_scale");
  eq.width = dimension(d, "width");
  eq.hidden = dimension(d, "hidden");
  stack.depth = dimension(d, "depth");
  stack.replicates = dimension(d, "replicates");
  stack.sets = dimension(d, "sets");
  stack.examples = dimension(d, "examples");
  if (eq.branch == Branch::linear && eq.hidden != eq.width)
    throw std::invalid_argument("a linear branch is as wide as the block");
  stack.set_of = needed<int64_t>(d, "set_of", stack.replicates, false);
  check_indices(stack.set_of, stack.replicates, stack.sets, "set_of");
  stack.branch_scale = needed<T>(d, "branch_scale", stack.depth, false);
  stack.skip_scale = needed<T>(d, "skip_scale", stack.depth, false);
  const auto fields = d["fields"].cast<py::dict>();
  for (int field = 0; field < kFields; ++field) {
    const char* key = kFieldNames[field];
    if (!fields.contains(key)) continue;
    const auto pair = fields[key].cast<py::tuple>();
    const auto array = pair[0].cast<py::array>();
    const int64_t size = stack.field_size(field), arrays = array.ndim() ? array.shape(0) : 0;
    stack.fields[field].data = data_of<T>(array, key, arrays * stack.depth * size, false);
    stack.fields[field].index = data_of<int64_t>(pair[1], key, stack.sets, false);
    stack.fields[field].size = size;
    check_indices(stack.fields[field].index, stack.sets, arrays, key);
  }
  const bool linear = eq.branch == Branch::linear, gated = eq.branch == Branch::gated;
  if (!stack.fields[kUp].data || !stack.fields[kDown].data == !linear || !stack.fields[kGate].data == gated ||
      (linear && stack.fields[kBDown].data) || (!gated && stack.fields[kBGate].data))
    throw std::invalid_argument("the weights do not fit the branch");
  return stack;
}

template <class T>
TapeArrays<T> read_tape(const Stack<T>& stack, const py::dict& d, bool writable) {
  const TapeSizes sizes = tape_sizes(stack);
  TapeArrays<T> tape;
  tape.states = needed<T>(d, "states", sizes.states, writable);
  const char* const factors[kPlaces] = {"pre_factors", "output_factors", "post_factors"};
  for (int place = 0; place < kPlaces; ++place)
    if (sizes.factors[place])
      tape.factors[place] =
          reinterpret_cast<NormFactors<T>*>(needed<T>(d, factors[place], sizes.factors[place], writable));
  for (const NormFactors<T>* f : tape.factors)
    if (reinterpret_cast<uintptr_t>(f) % alignof(NormFactors<T>))
      throw std::invalid_argument("a tape must be aligned to cache lines");
  if (sizes.branch) tape.branch = needed<T>(d, "branch", sizes.branch, writable);
  if (sizes.sum) tape.sum = needed<T>(d, "sum", sizes.sum, writable);
  if (sizes.positive) tape.positive = needed<uint16_t>(d, "positive", sizes.positive, writable);
  if (sizes.derivative) tape.derivative = needed<T>(d, "derivative", sizes.derivative, writable);
  if (sizes.gate_value) tape.gate_value = needed<T>(d, "gate_value", sizes.gate_value, writable);
  return tape;
}

// Rows (..., example, feature) of any strides; the leading axes fill the last places before them.
template <class T>
Rows<T> read_rows(const py::array& array, std::vector<int64_t> shape, const char* what) {
  if (!py::isinstance<py::array_t<T>>(array) || static_cast<size_t>(array.ndim()) != shape.size())
    throw std::invalid_argument(std::string(what) + " has the wrong dtype or number of axes");
  Rows<T> rows{static_cast<const char*>(array.data()), {0, 0, 0, 0}};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (array.shape(static_cast<py::ssize_t>(axis)) != shape[axis])
      throw std::invalid_argument(std::string(what) + " has the wrong shape");
    rows.strides[4 - shape.size() + axis] = array.strides(static_cast<py::ssize_t>(axis));
  }
  return rows;
}

std::vector<double> read_quantiles(const py::dict& results) {
  if (!results.contains("quantiles")) return {};
  auto levels = results["quantiles"].cast<std::vector<double>>();
  if (!std::all_of(levels.begin(), levels.end(), [](double q) { return q >= 0 && q <= 1; }))
    throw std::invalid_argument("quantiles must lie in [0, 1]");
  return levels;
}

template <class Run>
void run_released(const std::string& target, int threads, Run run) {
  if (threads < 1) throw std::invalid_argument("threads must be at least 1");
  const Target chosen = choose_target(target);
  Interrupt interrupt;
  {
    py::gil_scoped_release release;
    run(Resources{chosen, threads, interrupt.stop()});
  }
  interrupt.raise_if_stopped();
}

template <class T>
void run_forward(const py::dict& problem, const py::array& x, const py::array& x_of, const py::object& tape,
                 const py::dict& results, const std::string& target, int threads) {
  const Stack<T> stack = read_stack<T>(problem);
  const int64_t R = stack.replicates, L = stack.depth, B = stack.examples, d = stack.equation.width;
  const int64_t inputs = x.ndim() == 3 ? x.shape(0) : 0;
  const Rows<T> rows = read_rows<T>(x, {inputs, B, d}, "x");
  const int64_t* from = data_of<int64_t>(x_of, "x_of", R, false);
  check_indices(from, R, inputs, "x_of");
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
}

template <class T>
void run_reverse(const py::dict& problem, const py::dict& tape, const py::array& cotangent, const py::dict& results,
                 const std::string& target, int threads) {
  const Stack<T> stack = read_stack<T>(problem);
  const int64_t R = stack.replicates, L = stack.depth, B = stack.examples, d = stack.equation.width;
  const int64_t P = cotangent.ndim() == 4 ? cotangent.shape(0) : 0;
  const Rows<T> rows = read_rows<T>(cotangent, {P, R, B, d}, "cotangent");
  const TapeArrays<T> arrays = read_tape(stack, tape, false);
  ReverseResults<T> out{};
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
               [&](const Resources& resources) { reverse(stack, arrays, P, rows, out, resources); });
}

template <class T>
void run_tangent(const py::dict& problem, const py::dict& tape, const py::array& vectors, const py::dict& results,
                 const std::string& target, int threads) {
  const Stack<T> stack = read_stack<T>(problem);
  const int64_t R = stack.replicates, B = stack.examples, d = stack.equation.width;
  const int64_t P = vectors.ndim() == 4 ? vectors.shape(0) : 0;
  const Rows<T> rows = read_rows<T>(vectors, {P, R, B, d}, "tangent");
  const TapeArrays<T> arrays = read_tape(stack, tape, false);
  TangentResults<T> out{};
  out.output = needed<T>(results, "output", P * R * B * d, true);
  out.rms = needed<double>(results, "rms", P * R * (stack.depth + 1), true);
  run_released(target, threads,
               [&](const Resources& resources) { tangent(stack, arrays, P, rows, out, resources); });
}

template <class T>
py::dict sizes_of(const py::dict& problem) {
  const TapeSizes sizes = tape_sizes(read_stack<T>(problem));
  py::dict found;
  found["states"] = sizes.states;
  found["pre_factors"] = sizes.factors[kPre];
  found["output_factors"] = sizes.factors[kOutput];
  found["post_factors"] = sizes.factors[kPost];
  found["branch"] = sizes.branch;
  found["sum"] = sizes.sum;
  found["positive"] = sizes.positive;
  found["derivative"] = sizes.derivative;
  found["gate_value"] = sizes.gate_value;
  return found;
}

template <class T>
void bind_precision(py::module_& m, const std::string& suffix) {
  m.def(("tape_sizes_" + suffix).c_str(), &sizes_of<T>);
  m.def(("forward_" + suffix).c_str(), &run_forward<T>);
  m.def(("reverse_" + suffix).c_str(), &run_reverse<T>);
  m.def(("tangent_" + suffix).c_str(), &run_tangent<T>);
}

}  // namespace

void bind_stack(py::module_& m) {
  bind_precision<float>(m, "float32");
  bind_precision<double>(m, "float64");
}

}  // namespace depthgauge
