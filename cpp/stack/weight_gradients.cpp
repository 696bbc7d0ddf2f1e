#include "stack/weight_gradients.hpp"

#include <algorithm>

#include "stack/pool.hpp"

namespace depthgauge::stack {
namespace {

constexpr int kMatrices[] = {kUp, kDown, kGate};

// How many layers are kept: the products of one are taken while the groups go through the next.
template <class T>
int64_t layers_at_once(const Stack<T>& stack) {
  return std::min<int64_t>(stack.depth, 2);
}

}  // namespace

template <class T>
WeightGradients<T>::WeightGradients(const Stack<T>& stack, const TapeArrays<T>& tape, const VjpResults<T>& results,
                                    const Plan& plan, const std::vector<int64_t>& replicates, const Kernels<T>& table,
                                    int threads)
    : stack_(stack),
      tape_(tape),
      results_(results),
      plan_(plan),
      replicates_(replicates),
      table_(table),
      block_size_(results.only_rms ? kOuterRows * std::max(stack.equation.width, stack.equation.hidden) : 0),
      block_values_(block_size_ * threads) {
  const auto units = static_cast<int64_t>(plan.units.size());
  for (int64_t l = 0; l < layers_at_once(stack); ++l)
    stores_[l] =
        std::make_unique<GradientStore<T>>(stack, units, stack.active(kPre), !tape.activation, stack.active(kOutput));
  find_owners();
  divide_rows();
  examples_.reserve(plan.units.size());
  for (const Unit& unit : plan.units) examples_.push_back(unit.examples);
  for (auto& left : left_) left.resize(plan.units.size());
}

template <class T>
void WeightGradients<T>::find_owners() {
  for (size_t i = 0; i < plan_.units.size(); ++i) {
    const int64_t replicate = plan_.units[i].replicate, unit = static_cast<int64_t>(i);
    const int64_t index = results_.only_rms ? replicate : stack_.set_of[replicate];
    if (owners_.empty() || owners_.back().index != index) owners_.push_back({index, unit, unit});
    owners_.back().last = unit + 1;
  }
}

template <class T>
void WeightGradients<T>::divide_rows() {
  for (size_t o = 0; o < owners_.size(); ++o)
    for (const int field : kMatrices) {
      if (!stack_.fields[field].data) continue;
      for (int64_t k = 0; k < rows(field); k += kOuterRows)
        blocks_.push_back({static_cast<int64_t>(o), field, k, std::min<int64_t>(rows(field), k + kOuterRows)});
    }
  block_pools_.resize(blocks_.size());
}

// Finds the left factors of the products.
template <class T>
void WeightGradients<T>::prepare(int64_t l) {
  for (size_t i = 0; i < plan_.units.size(); ++i) {
    const Unit& unit = plan_.units[i];
    const T* const state = state_of(stack_, tape_.states, unit, l);
    const T* const activation = tape_of(stack_, tape_, unit, l).activation;
    for (const int field : kMatrices)
      if (stack_.fields[field].data) left_[field][i] = store(l).left(field, static_cast<int64_t>(i), state, activation);
  }
}

template <class T>
OuterProduct<T> WeightGradients<T>::product_of(const RowBlock& block, int64_t l) const {
  const Owner& owner = owners_[static_cast<size_t>(block.owner)];
  OuterProduct<T> product{};
  product.left = left_[block.field].data() + owner.first;
  product.right = store(l).right(block.field, owner.first);
  product.panel_stride = store(l).panel_stride();
  product.examples = examples_.data() + owner.first;
  product.groups = owner.last - owner.first;
  product.columns = product.stride = columns(block.field);
  // branch_scale is already in the gradient that the up products see.
  product.factor =
      static_cast<T>(stack_.equation.weight_scale) * (block.field == kDown ? stack_.branch_scale[l] : T(1));
  return product;
}

template <class T>
void WeightGradients<T>::multiply(int64_t task, int64_t l, T* scratch, int worker) {
  const RowBlock& block = blocks_[static_cast<size_t>(task)];
  OuterProduct<T> product = product_of(block, l);
  const int64_t layer = owners_[static_cast<size_t>(block.owner)].index * stack_.depth + l;
  product.destination =
      results_.only_rms ? block_values_.get() + worker * block_size_
                        : results_.weights[block.field] + (layer * rows(block.field) + block.first) * product.columns;
  const int64_t size = (block.last - block.first) * product.columns;
  // A branch that is left out adds nothing.
  if (stack_.branch_scale[l] == 0)
    std::fill_n(product.destination, size, T(0));
  else
    table_.outer(product, block.first, block.last, scratch);
  if (results_.only_rms) block_pools_[static_cast<size_t>(task)] = pool_values(product.destination, size);
}

template <class T>
void WeightGradients<T>::reduce(int64_t l) {
  if (results_.only_rms) reduce_matrix_rms(l);
  for (const Owner& owner : owners_)
    for (int field = kBUp; field < kFields; ++field)
      if (stack_.fields[field].data) reduce_vector(owner, field, l);
  if (results_.branch_scale) reduce_scales(l);
}

template <class T>
void WeightGradients<T>::reduce_matrix_rms(int64_t l) {
  for (size_t i = 0; i < blocks_.size();) {
    const RowBlock& block = blocks_[i];
    Pool pool;
    for (; i < blocks_.size() && blocks_[i].owner == block.owner && blocks_[i].field == block.field; ++i)
      merge(pool, block_pools_[i]);
    const int64_t r = owners_[static_cast<size_t>(block.owner)].index;
    results_.weight_rms[block.field][r * stack_.depth + l] = root_mean_square(pool, stack_.field_size(block.field));
  }
}

template <class T>
void WeightGradients<T>::reduce_vector(const Owner& owner, int field, int64_t l) {
  const int64_t size = stack_.field_size(field);
  std::vector<double> total(static_cast<size_t>(size));
  for (int64_t i = owner.first; i < owner.last; ++i) {
    const double* sums = GradientStore<T>::sum(store(l).job(i)->sums, field);
    for (int64_t k = 0; k < size; ++k) total[static_cast<size_t>(k)] += sums[k];
  }
  const int64_t at = owner.index * stack_.depth + l;
  if (results_.only_rms)
    results_.weight_rms[field][at] = root_mean_square(pool_values(total.data(), size), size);
  else
    std::transform(total.begin(), total.end(), results_.weights[field] + at * size,
                   [](double sum) { return static_cast<T>(sum); });
}

template <class T>
void WeightGradients<T>::reduce_scales(int64_t l) {
  for (const int64_t r : replicates_) {
    const int64_t first = plan_.first_unit[static_cast<size_t>(r)], at = r * stack_.depth + l;
    double branch = 0, skip = 0;
    for (int64_t i = first; i < first + stack_.groups(); ++i) {
      branch += store(l).job(i)->branch_scale;
      skip += store(l).job(i)->skip_scale;
    }
    results_.branch_scale[at] = branch;
    results_.skip_scale[at] = skip;
  }
}

template <class T>
std::vector<std::vector<int64_t>> replicate_blocks(const Stack<T>& stack, const VjpResults<T>& results) {
  constexpr int64_t kBytes = 256 << 20;
  const std::vector<int64_t> order = by_set(stack);
  if (!results.weight_gradients) return {order};
  const int64_t features = 3 * stack.equation.width + 3 * stack.equation.hidden;
  const int64_t each = layers_at_once(stack) * stack.groups() * 64 * features;
  std::vector<std::vector<int64_t>> blocks;
  int64_t used = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    // The replicates of one weight set stay together.
    const bool together = i > 0 && !results.only_rms && stack.set_of[order[i]] == stack.set_of[order[i - 1]];
    if (blocks.empty() || (!together && used + each > kBytes)) {
      blocks.emplace_back();
      used = 0;
    }
    blocks.back().push_back(order[i]);
    used += each;
  }
  return blocks;
}

#define DG_INSTANTIATE(T)            \
  template class WeightGradients<T>; \
  template std::vector<std::vector<int64_t>> replicate_blocks(const Stack<T>&, const VjpResults<T>&);
DG_INSTANTIATE(float)
DG_INSTANTIATE(double)
#undef DG_INSTANTIATE

}  // namespace depthgauge::stack
