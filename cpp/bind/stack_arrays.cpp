#include "bind/stack_arrays.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>

namespace depthgauge {

using namespace stack;

namespace {

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

int64_t dimension(const py::dict& d, const char* key) {
  const auto value = d[key].cast<int64_t>();
  if (value < 0) throw std::invalid_argument(std::string(key) + " must not be negative");
  return value;
}

}  // namespace

const char* const kFieldNames[kFields] = {"up",         "down",      "gate",         "b_up",
                                          "b_down",     "b_gate",    "pre_gain",     "output_gain",
                                          "post_gain",  "pre_shift", "output_shift", "post_shift"};

void check_indices(const int64_t* index, int64_t count, int64_t below, const std::string& what) {
  if (!std::all_of(index, index + count, [&](int64_t i) { return i >= 0 && i < below; }))
    throw std::invalid_argument(what + " points outside its array");
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
py::dict new_tape(const Stack<T>& stack, bool with_activation) {
  constexpr py::ssize_t kLine = 64;
  const TapeSizes sizes = tape_sizes(stack);
  struct Part {
    const char* name;
    int64_t size;
    py::dtype dtype;
    py::ssize_t lines() const { return (size * dtype.itemsize() + kLine - 1) / kLine; }
  };
  const auto floats = py::dtype::of<T>();
  const Part parts[] = {{"states", sizes.states, floats},
                        {"pre_factors", sizes.factors[kPre], floats},
                        {"output_factors", sizes.factors[kOutput], floats},
                        {"post_factors", sizes.factors[kPost], floats},
                        {"branch", sizes.branch, floats},
                        {"sum", sizes.sum, floats},
                        {"positive", sizes.positive, py::dtype::of<uint16_t>()},
                        {"derivative", sizes.derivative, floats},
                        {"gate_value", sizes.gate_value, floats},
                        {"activation", with_activation ? sizes.activation : 0, floats}};
  py::ssize_t lines = 1;
  for (const Part& part : parts) lines += part.lines();
  const py::array memory = empty(py::make_tuple(lines * kLine), py::dtype::of<unsigned char>());
  const auto start = reinterpret_cast<uintptr_t>(memory.data());
  const char* at = static_cast<const char*>(memory.data()) + (kLine - start % kLine) % kLine;
  py::dict tape;
  for (const Part& part : parts) {
    if (part.size || &part == parts)
      tape[part.name] = py::array(part.dtype, {part.size}, {part.dtype.itemsize()}, at, memory);
    at += part.lines() * kLine;
  }
  return tape;
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
  if (d.contains("activation")) tape.activation = needed<T>(d, "activation", sizes.activation, writable);
  return tape;
}

template <class T>
Rows<T> read_rows(const py::array& array, const std::vector<int64_t>& shape, const char* what) {
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

template Stack<float> read_stack(const py::dict&);
template Stack<double> read_stack(const py::dict&);
template py::dict new_tape(const Stack<float>&, bool);
template py::dict new_tape(const Stack<double>&, bool);
template TapeArrays<float> read_tape(const Stack<float>&, const py::dict&, bool);
template TapeArrays<double> read_tape(const Stack<double>&, const py::dict&, bool);
template Rows<float> read_rows(const py::array&, const std::vector<int64_t>&, const char*);
template Rows<double> read_rows(const py::array&, const std::vector<int64_t>&, const char*);

}  // namespace depthgauge
