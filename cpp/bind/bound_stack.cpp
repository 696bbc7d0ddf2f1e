#include "bind/bound_stack.hpp"

#include <algorithm>
#include <stdexcept>

namespace depthgauge {

using namespace stack;

namespace {

// The option of that name, in the order of its enumeration.
template <class E, size_t N>
E parse(const char* what, const std::string& text, const char* const (&names)[N]) {
  const auto found = std::find(names, names + N, text);
  if (found == names + N)
    throw std::invalid_argument(std::string(what) + "='" + text + "' is unknown to the native backend");
  return static_cast<E>(found - names);
}

int64_t dimension(const char* what, int64_t value) {
  if (value < 0) throw std::invalid_argument(std::string(what) + " must not be negative");
  return value;
}

}  // namespace

void check_indices(const int64_t* index, int64_t count, int64_t below, const std::string& what) {
  if (!std::all_of(index, index + count, [&](int64_t i) { return i >= 0 && i < below; }))
    throw std::invalid_argument(what + " points outside its array");
}

template <class T>
void BoundStack<T>::read_equation(const py::object& block) {
  Equation& eq = stack_.equation;
  const auto text = [&](const char* name) { return block.attr(name).template cast<std::string>(); };
  eq.branch = parse<Branch>("branch", text("branch"), kBranchNames);
  eq.activation = parse<Activation>("activation", text("activation"), kActivationNames);
  const char* const places[kPlaces] = {"pre_norm", "output_norm", "post_norm"};
  for (int place = 0; place < kPlaces; ++place)
    eq.norm[place] = parse<Norm>(places[place], text(places[place]), kNormNames);
  // Scalars are rounded once to the arrays' precision.
  const auto scalar = [&](const char* name) {
    return static_cast<double>(static_cast<T>(block.attr(name).template cast<double>()));
  };
  eq.eps = scalar("eps");
  eq.slope = scalar("slope");
  eq.dyt_alpha = scalar("dyt_alpha");
  eq.weight_scale = scalar("weight_scale");
}

template <class T>
void BoundStack<T>::read_field(int field, const py::tuple& pair) {
  const char* const name = kFieldNames[field];
  if (pair.size() != 2) throw std::invalid_argument(std::string(name) + " must be a pair of an array and an index");
  const auto array = pair[0].cast<py::array>();
  const int64_t size = stack_.field_size(field), entries = array.ndim() ? array.shape(0) : 0;
  Field<T>& to = stack_.fields[field];
  int64_t count = 0;
  if (__builtin_mul_overflow(entries, stack_.depth, &count) || __builtin_mul_overflow(count, size, &count))
    throw std::invalid_argument(std::string(name) + " has more entries than there can be");
  to.data = data_of<T>(array, name, count, false);
  const int64_t* const index = data_of<int64_t>(pair[1], name, stack_.sets, false);
  index_[field].assign(index, index + stack_.sets);
  to.index = index_[field].data();
  to.size = size;
  check_indices(to.index, stack_.sets, entries, name);
  field_axes_[static_cast<size_t>(field)].assign(array.shape() + 1, array.shape() + array.ndim());
  kept_.push_back(pair);
}

template <class T>
BoundStack<T>::BoundStack(const py::object& block, int64_t depth, int64_t width, int64_t hidden,
                          const py::tuple& replicates, const py::array& set_of, int64_t sets,
                          const py::array& branch_scale, const py::array& skip_scale, const py::dict& parameters)
    : field_axes_(kFields), kept_{branch_scale, skip_scale} {
  Equation& eq = stack_.equation;
  read_equation(block);
  eq.width = dimension("width", width);
  eq.hidden = dimension("hidden", hidden);
  stack_.depth = dimension("depth", depth);
  stack_.sets = dimension("sets", sets);
  stack_.replicates = 1;
  for (const py::handle axis : replicates) {
    replicate_axes_.push_back(axis.cast<py::ssize_t>());
    stack_.replicates *= dimension("replicates", replicate_axes_.back());
  }
  if (eq.branch == Branch::linear && eq.hidden != eq.width)
    throw std::invalid_argument("a linear branch is as wide as the block");
  const int64_t* const sets_of = data_of<int64_t>(set_of, "set_of", stack_.replicates, false);
  set_of_.assign(sets_of, sets_of + stack_.replicates);
  stack_.set_of = set_of_.data();
  check_indices(stack_.set_of, stack_.replicates, stack_.sets, "set_of");
  stack_.branch_scale = data_of<T>(branch_scale, "branch_scale", stack_.depth, false);
  stack_.skip_scale = data_of<T>(skip_scale, "skip_scale", stack_.depth, false);
  for (const auto& [key, value] : parameters) {
    const auto name = py::cast<std::string>(key);
    const auto found = std::find(std::begin(kFieldNames), std::end(kFieldNames), name);
    if (found == std::end(kFieldNames)) throw std::invalid_argument("weights have no field " + name);
    fields_.push_back(static_cast<int>(found - std::begin(kFieldNames)));
    read_field(fields_.back(), py::cast<py::tuple>(value));
  }
  const bool linear = eq.branch == Branch::linear, gated = eq.branch == Branch::gated;
  const auto& fields = stack_.fields;
  if (!fields[kUp].data || !fields[kDown].data == !linear || !fields[kGate].data == gated ||
      (linear && fields[kBDown].data) || (!gated && fields[kBGate].data))
    throw std::invalid_argument("the weights do not fit the branch");
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

template class BoundStack<float>;
template class BoundStack<double>;
template Rows<float> read_rows(const py::array&, const std::vector<int64_t>&, const char*);
template Rows<double> read_rows(const py::array&, const std::vector<int64_t>&, const char*);

}  // namespace depthgauge
