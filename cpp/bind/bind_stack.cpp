// The passes over whole stacks, on NumPy arrays.
#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind/bind.hpp"
#include "bind/bound_stack.hpp"
#include "bind/bound_tape.hpp"
#include "bind/call.hpp"

namespace py = pybind11;

namespace depthgauge {
namespace {

using namespace stack;
using Axes = std::vector<py::ssize_t>;

Axes with(Axes axes, std::initializer_list<int64_t> more) {
  axes.insert(axes.end(), more.begin(), more.end());
  return axes;
}

// Makes an array of results, puts it under its name, and returns its data.
template <class U>
U* add(py::dict& results, const char* name, const Axes& axes) {
  py::array_t<U> made(axes);
  results[name] = made;
  return made.mutable_data();
}

template <class U>
U* add_filled(py::dict& results, const char* name, const Axes& axes, U value) {
  U* const data = add<U>(results, name, axes);
  std::fill_n(data, static_cast<py::array>(results[name]).size(), value);
  return data;
}

void check_quantiles(const std::vector<double>& levels) {
  if (!std::all_of(levels.begin(), levels.end(), [](double q) { return q >= 0 && q <= 1; }))
    throw std::invalid_argument("quantiles must lie in [0, 1]");
}

// Statistics of every state or block, as the lists in `stack` name them.
#define DG_ADD(name, type, of) out.name = add<type>(results, #name, with(leading, {of##s}));

// Returns results by name, and the tape, if states are to be kept.
template <class T>
py::tuple run_forward(const BoundStack<T>& bound, const py::array& x, const py::array& x_of, const std::string& keep,
                      const std::vector<double>& quantiles, bool cosine, const std::string& target, int threads) {
  if (x.ndim() != 3) throw std::invalid_argument("x must have axes (inputs, examples, features)");
  const Stack<T> stack = bound.with_examples(x.shape(1));
  const int64_t inputs = x.shape(0), R = stack.replicates, B = stack.examples, d = stack.equation.width;
  const Rows<T> rows = read_rows<T>(x, {inputs, B, d}, "x");
  const int64_t* const from = data_of<int64_t>(x_of, "x_of", R, false);
  check_indices(from, R, inputs, "x_of");
  check_quantiles(quantiles);
  if (keep != "states" && keep != "activations" && keep != "nothing")
    throw std::invalid_argument("keep='" + keep + "' is unknown to the native backend");

  py::dict results;
  ForwardResults<T> out{};
  const Axes& leading = bound.replicate_axes();
  const int64_t blocks = stack.depth, states = blocks + 1, Q = static_cast<int64_t>(quantiles.size());
  out.output = add<T>(results, "output", with(leading, {B, d}));
  DG_FORWARD_STATISTICS(DG_ADD)
  out.quantiles = quantiles;
  for (const char* absent : {"state_quantiles", "derivative_quantiles", "cosine"}) results[absent] = py::none();
  if (Q) {
    out.state_quantiles = add<double>(results, "state_quantiles", with(leading, {states, Q}));
    out.derivative_quantiles = add<double>(results, "derivative_quantiles", with(leading, {blocks, Q}));
  }
  if (cosine) out.cosine = add<double>(results, "cosine", with(leading, {states}));

  py::object tape = py::none();
  TapeArrays<T> arrays;
  if (keep != "nothing") {
    tape = py::cast(new BoundTape<T>(stack, keep == "activations"), py::return_value_policy::take_ownership);
    arrays = tape.cast<const BoundTape<T>&>().of(stack);
  }
  run_released(target, threads,
               [&](const Resources& resources) { forward(stack, rows, from, arrays, out, resources); });
  return py::make_tuple(results, tape);
}

// Cotangents or tangents of P probes, given with all their leading axes and flat, (P, R, B, d).
template <class T>
struct Vectors {
  Vectors(const BoundStack<T>& bound, const BoundTape<T>& tape, const Axes& axes, const py::array& flat,
          const char* what)
      : stack(bound.with_examples(tape.examples())),
        tape(tape.of(stack)),
        probes(flat.ndim() == 4 ? flat.shape(0) : 0),
        rows(read_rows<T>(flat, {probes, stack.replicates, stack.examples, stack.equation.width}, what)),
        leading(axes) {
    int64_t size = 1;
    for (const py::ssize_t axis : axes) size *= axis;
    if (size != probes * stack.replicates) throw std::invalid_argument("the leading axes do not fit the vectors");
  }
  const Stack<T> stack;
  const TapeArrays<T>& tape;
  const int64_t probes;
  const Rows<T> rows;
  const Axes& leading;
};

// What no example reaches stays as it is made here: gradients of 0, whose root mean square is 0, and of nothing NaN.
template <class T>
void add_weight_gradients(const BoundStack<T>& bound, const Stack<T>& stack, bool only_rms, py::dict& results,
                          VjpResults<T>& out) {
  const Axes at_blocks = with(bound.replicate_axes(), {stack.depth});
  const bool reached = stack.replicates * stack.examples > 0;
  py::dict by_field;
  for (const int field : bound.fields()) {
    const char* const name = kFieldNames[field];
    if (only_rms) {
      const double nothing = stack.field_size(field) ? 0.0 : std::nan("");
      out.weight_rms[field] = add_filled(by_field, name, at_blocks, nothing);
      continue;
    }
    py::tuple shape(py::cast(bound.field_axes(field)));
    const py::array made = empty(py::make_tuple(stack.sets) + shape, py::dtype::of<T>());
    by_field[name] = made;
    out.weights[field] = static_cast<T*>(const_cast<void*>(made.data()));
    if (!reached) std::fill_n(out.weights[field], made.size(), T(0));
  }
  results[only_rms ? "weight_rms" : "weights"] = by_field;
  if (only_rms) return;
  out.branch_scale = add_filled(results, "branch_scale", at_blocks, 0.0);
  out.skip_scale = add_filled(results, "skip_scale", at_blocks, 0.0);
}

// `gradients` says which weight gradients are wanted: "none", "all" or "rms".
template <class T>
py::dict run_vjp(const BoundStack<T>& bound, const BoundTape<T>& tape, const Axes& axes, const py::array& cotangent,
                 const std::string& gradients, const std::vector<double>& quantiles, const std::string& target,
                 int threads) {
  const Vectors<T> given(bound, tape, axes, cotangent, "cotangent");
  const Stack<T>& stack = given.stack;
  const Axes& leading = given.leading;
  check_quantiles(quantiles);
  if (gradients != "none" && gradients != "all" && gradients != "rms")
    throw std::invalid_argument("gradients='" + gradients + "' is unknown to the native backend");
  if (gradients != "none" && given.probes != 1) throw std::invalid_argument("weight gradients take one probe");

  py::dict results;
  VjpResults<T> out{};
  const int64_t states = stack.depth + 1;
  out.input_gradient = add<T>(results, "input_gradient", with(leading, {stack.examples, stack.equation.width}));
  DG_VJP_STATISTICS(DG_ADD)
  out.quantiles = quantiles;
  for (const char* absent : {"gradient_quantiles", "weights", "weight_rms", "branch_scale", "skip_scale"})
    results[absent] = py::none();
  if (!quantiles.empty())
    out.gradient_quantiles =
        add<double>(results, "gradient_quantiles", with(leading, {states, static_cast<int64_t>(quantiles.size())}));
  out.weight_gradients = gradients != "none";
  out.only_rms = gradients == "rms";
  if (out.weight_gradients) add_weight_gradients(bound, stack, out.only_rms, results, out);
  run_released(target, threads,
               [&](const Resources& resources) { vjp(stack, given.tape, given.probes, given.rows, out, resources); });
  return results;
}
#undef DG_ADD

template <class T>
py::dict run_jvp(const BoundStack<T>& bound, const BoundTape<T>& tape, const Axes& axes, const py::array& vectors,
                 const std::string& target, int threads) {
  const Vectors<T> given(bound, tape, axes, vectors, "tangent");
  py::dict results;
  JvpResults<T> out{};
  out.output = add<T>(results, "output", with(axes, {given.stack.examples, given.stack.equation.width}));
  out.rms = add<double>(results, "rms", with(axes, {given.stack.depth + 1}));
  run_released(target, threads, [&](const Resources& resources) {
    jvp(given.stack, given.tape, given.probes, given.rows, out, resources);
  });
  return results;
}

template <class T>
void bind_precision(py::module_& m, const std::string& suffix) {
  py::class_<BoundStack<T>>(m, ("Stack_" + suffix).c_str())
      .def(py::init<const py::object&, int64_t, int64_t, int64_t, const py::tuple&, const py::array&, int64_t,
                    const py::array&, const py::array&, const py::dict&>(),
           py::arg("block"), py::arg("depth"), py::arg("width"), py::arg("hidden"), py::arg("replicates"),
           py::arg("set_of"), py::arg("sets"), py::arg("branch_scale"), py::arg("skip_scale"), py::arg("parameters"))
      .def("forward", &run_forward<T>, py::pos_only())
      .def("vjp", &run_vjp<T>, py::pos_only())
      .def("jvp", &run_jvp<T>, py::pos_only());
  using Tape = const BoundTape<T>&;
  py::class_<BoundTape<T>>(m, ("Tape_" + suffix).c_str())
      .def_property_readonly("nbytes", [](Tape tape) { return tape.nbytes(); })
      .def(
          "of_copies", [](Tape tape, int64_t count) { return tape.of_copies(count); }, py::pos_only())
      .def("states", [](Tape tape) { return tape.states(); })
      // For all protocols of pickle, the oldest of which would make an object of pybind11's base class.
      .def(
          "__reduce_ex__",
          [name = "restore_tape_" + suffix](Tape tape, int) {
            return py::make_tuple(py::module_::import("depthgauge._core").attr(name.c_str()),
                                  py::make_tuple(tape.to_state()));
          },
          py::pos_only());
  m.def(("restore_tape_" + suffix).c_str(), [](const py::tuple& state) { return BoundTape<T>(state); },
        py::arg("state"), py::pos_only());
}

}  // namespace

void bind_stack(py::module_& m) {
  bind_precision<float>(m, "float32");
  bind_precision<double>(m, "float64");
}

}  // namespace depthgauge
