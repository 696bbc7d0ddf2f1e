#include "driver/problem.hpp"

#include <cmath>

#include "stack/names.hpp"

namespace depthgauge::driver {
namespace {

using namespace stack;

int64_t levels(const Case& c) { return c.quantiles ? static_cast<int64_t>(kLevels.size()) : 0; }

template <class E, size_t A>
void append(std::vector<Bytes>& list, const char* name, const Array<E, A>& array) {
  if (array.data()) list.push_back(bytes_of(name, array));
}

}  // namespace

template <class T>
Problem<T>::Problem(const Case& c)
    : case_(c),
      sets_(c.own_weights ? c.replicates : std::min<int64_t>(c.replicates, 1)),
      branch_scale_(c.depth),
      skip_scale_(c.depth),
      set_of_(c.replicates),
      x_of_(c.replicates),
      x_([&] {
        Random random(c.seed);
        return RowArray<T>({1, c.own_inputs ? c.replicates : 1, c.examples, c.equation.width}, c.layout, random);
      }()),
      cotangent_([&] {
        Random random(c.seed + 1);
        return RowArray<T>({c.probes, c.replicates, c.examples, c.equation.width}, c.layout, random);
      }()),
      tangent_([&] {
        Random random(c.seed + 2);
        return RowArray<T>({c.probes, c.replicates, c.examples, c.equation.width}, c.layout, random);
      }()) {
  // Scalars are rounded once to the precision of the arrays.
  Equation& eq = case_.equation;
  for (double* scalar : {&eq.eps, &eq.slope, &eq.dyt_alpha, &eq.weight_scale})
    *scalar = static_cast<double>(static_cast<T>(*scalar));
  Random random(c.seed + 3);
  for (int64_t l = 0; l < c.depth; ++l) {
    branch_scale_[l] = random.one_in(8) ? T(0) : static_cast<T>(0.5 + random.uniform());
    skip_scale_[l] = random.one_in(8) ? T(0) : static_cast<T>(random.one_in(4) ? -0.7 : 1.0);
  }
  // Neither in order nor all in use from the start.
  for (int64_t r = 0; r < c.replicates; ++r) {
    set_of_[r] = c.own_weights ? sets_ - 1 - r : 0;
    x_of_[r] = c.own_inputs ? (r + 1) % c.replicates : 0;
  }
  fill_parameters(random);
}

template <class T>
bool Problem<T>::has(int field) const {
  const Branch branch = case_.equation.branch;
  switch (field) {
    case kUp: return true;
    case kDown: return branch != Branch::linear;
    case kGate: return branch == Branch::gated;
    case kBUp: return case_.biases;
    case kBDown: return case_.biases && branch != Branch::linear;
    case kBGate: return case_.biases && branch == Branch::gated;
    default: return field < kShift ? case_.gains : case_.shifts;
  }
}

template <class T>
T Problem<T>::draw_parameter(int field, Random& random) const {
  const double value = random.centered();
  const int64_t inputs = field == kDown ? case_.equation.hidden : case_.equation.width;
  if (field <= kGate) return static_cast<T>(value / std::sqrt(static_cast<double>(inputs)));
  return static_cast<T>(0.3 * value + (field >= kGain && field < kShift ? 1 : 0));
}

template <class T>
void Problem<T>::fill_parameters(Random& random) {
  const Stack<T> sizes = stack_of(all());
  for (int field = 0; field < kFields; ++field) {
    if (!has(field)) continue;
    // Parameters need not be as many as weight sets.
    const bool shared = field % 3 == 1;
    const int64_t arrays = shared ? std::min<int64_t>(sets_, 1) : sets_;
    values_[field] = Array<T>(arrays * case_.depth * sizes.field_size(field));
    for (int64_t i = 0; i < values_[field].size(); ++i) values_[field][i] = draw_parameter(field, random);
    index_[field] = Array<int64_t>(sets_);
    for (int64_t s = 0; s < sets_; ++s) index_[field][s] = shared ? 0 : (s + field) % sets_;
  }
}

template <class T>
Stack<T> Problem<T>::stack_of(Span span) const {
  Stack<T> stack{};
  stack.equation = case_.equation;
  stack.depth = case_.depth;
  stack.replicates = case_.replicates;
  stack.sets = sets_;
  stack.examples = span.count;
  stack.set_of = set_of_.data();
  stack.branch_scale = branch_scale_.data();
  stack.skip_scale = skip_scale_.data();
  for (int field = 0; field < kFields; ++field)
    stack.fields[field] = {values_[field].data(), index_[field].data(), stack.field_size(field)};
  return stack;
}

template <class T>
const T* Problem<T>::parameter(int field, int64_t set, int64_t layer) const {
  if (!values_[field].data()) return nullptr;
  return values_[field].data() + (index_[field][set] * case_.depth + layer) * stack_of(all()).field_size(field);
}

template <class T>
void Problem<T>::poison(int64_t example, T value) {
  const int64_t k = case_.equation.width / 2;
  x_.set_everywhere(example, k, value);
  cotangent_.set_everywhere(example, k, value);
  tangent_.set_everywhere(example, k, value);
}

template <class T>
std::vector<Bytes> Problem<T>::inputs() const {
  std::vector<Bytes> list = {x_.bytes("x"), cotangent_.bytes("cotangent"), tangent_.bytes("tangent"),
                             bytes_of("branch_scale", branch_scale_), bytes_of("skip_scale", skip_scale_)};
  for (int field = 0; field < kFields; ++field) append(list, kFieldNames[field], values_[field]);
  return list;
}

// Statistics of states or blocks, as the lists in stack/propagation.hpp name them.
#define DG_ALLOCATE(name, type, of) name = Array<type>(of##s);
#define DG_POINT(name, type, of) out.name = name.data();
#define DG_APPEND(name, type, of) append(list, #name, name);

template <class T>
ForwardRun<T>::ForwardRun(const Problem<T>& problem, Span span, bool keep, const Resources& resources) {
  const Case& c = problem.options();
  const Stack<T> stack = problem.stack_of(span);
  const int64_t states = c.replicates * (c.depth + 1), blocks = c.replicates * c.depth;
  output = Array<T>(c.replicates * span.count * c.equation.width);
  DG_FORWARD_STATISTICS(DG_ALLOCATE)
  if (c.quantiles) {
    quantiles = Array<double>(states * levels(c));
    derivative_quantiles_ = Array<double>(blocks * levels(c));
  }
  if (c.cosine) cosine_ = Array<double>(states);
  if (keep) {
    const TapeLayout<T> layout = tape_layout(stack, c.activations);
    for (int part = 0; part < TapeLayout<T>::kParts; ++part)
      if (layout.bytes[part] || part == 0) tape_[part] = Array<char, 64>(layout.bytes[part]);
  }
  ForwardResults<T> out{};
  out.output = output.data();
  DG_FORWARD_STATISTICS(DG_POINT)
  if (c.quantiles) out.quantiles = kLevels;
  out.state_quantiles = quantiles.data();
  out.derivative_quantiles = derivative_quantiles_.data();
  out.cosine = cosine_.data();
  stack::forward(stack, problem.x().from(span.first), problem.x_of(), tape(), out, resources);
}

template <class T>
TapeArrays<T> ForwardRun<T>::tape() const {
  char* parts[TapeLayout<T>::kParts];
  for (int part = 0; part < TapeLayout<T>::kParts; ++part) parts[part] = tape_[part].data();
  return TapeLayout<T>::of_parts(parts);
}

template <class T>
std::vector<Bytes> ForwardRun<T>::results() const {
  std::vector<Bytes> list;
  append(list, "output", output);
  DG_FORWARD_STATISTICS(DG_APPEND)
  append(list, "state_quantiles", quantiles);
  append(list, "derivative_quantiles", derivative_quantiles_);
  append(list, "cosine", cosine_);
  return list;
}

template <class T>
std::vector<Bytes> ForwardRun<T>::tape_bytes() const {
  std::vector<Bytes> list;
  for (const auto& part : tape_) append(list, "tape", part);
  return list;
}

template <class T>
VjpRun<T>::VjpRun(const Problem<T>& problem, Span span, const ForwardRun<T>& forwarded, WeightGradients mode,
                  const Resources& resources) {
  const Case& c = problem.options();
  const Stack<T> stack = problem.stack_of(span);
  // Weight gradients take one probe.
  const int64_t probes = mode == WeightGradients::none ? c.probes : 1;
  const int64_t states = probes * c.replicates * (c.depth + 1), blocks = c.replicates * c.depth;
  input_gradient = Array<T>(probes * c.replicates * span.count * c.equation.width);
  DG_VJP_STATISTICS(DG_ALLOCATE)
  if (c.quantiles) quantiles = Array<double>(states * levels(c));
  VjpResults<T> out{};
  out.input_gradient = input_gradient.data();
  DG_VJP_STATISTICS(DG_POINT)
  if (c.quantiles) out.quantiles = kLevels;
  out.gradient_quantiles = quantiles.data();
  out.weight_gradients = mode != WeightGradients::none;
  out.only_rms = mode == WeightGradients::rms;
  for (int field = 0; field < kFields && out.weight_gradients; ++field) {
    if (!stack.fields[field].data) continue;
    if (out.only_rms)
      weight_rms[field] = Array<double>(blocks);
    else
      weights[field] = Array<T>(stack.sets * c.depth * stack.field_size(field));
    out.weight_rms[field] = weight_rms[field].data();
    out.weights[field] = weights[field].data();
  }
  if (mode == WeightGradients::full) {
    branch_scale = Array<double>(blocks);
    skip_scale = Array<double>(blocks);
  }
  out.branch_scale = branch_scale.data();
  out.skip_scale = skip_scale.data();
  stack::vjp(stack, forwarded.tape(), probes, problem.cotangent().from(span.first), out, resources);
}

template <class T>
std::vector<Bytes> VjpRun<T>::results() const {
  std::vector<Bytes> list;
  append(list, "input_gradient", input_gradient);
  DG_VJP_STATISTICS(DG_APPEND)
  append(list, "gradient_quantiles", quantiles);
  for (int field = 0; field < kFields; ++field) {
    append(list, kFieldNames[field], weights[field]);
    append(list, kFieldNames[field], weight_rms[field]);
  }
  append(list, "branch_scale", branch_scale);
  append(list, "skip_scale", skip_scale);
  return list;
}

template <class T>
JvpRun<T>::JvpRun(const Problem<T>& problem, Span span, const ForwardRun<T>& forwarded, const Resources& resources) {
  const Case& c = problem.options();
  output = Array<T>(c.probes * c.replicates * span.count * c.equation.width);
  rms = Array<double>(c.probes * c.replicates * (c.depth + 1));
  JvpResults<T> out{};
  out.output = output.data();
  out.rms = rms.data();
  stack::jvp(problem.stack_of(span), forwarded.tape(), c.probes, problem.tangent().from(span.first), out, resources);
}

#define DG_INSTANTIATE(T)       \
  template class Problem<T>;    \
  template class ForwardRun<T>; \
  template class VjpRun<T>;     \
  template class JvpRun<T>;
DG_INSTANTIATE(float)
DG_INSTANTIATE(double)
#undef DG_INSTANTIATE

}  // namespace depthgauge::driver
