#include <algorithm>
#include <memory>

#include "stack/plan.hpp"
#include "stack/shares.hpp"

namespace depthgauge::stack {
namespace {

// What the weight gradients of one layer need of every group, kept until all groups have gone back through the block and
// the outer products over them can be taken.
template <class T>
class GradientStore {
 public:
  GradientStore(const Stack<T>& stack, int64_t units, bool input, bool activation, bool branch)
      : d_(stack.equation.width),
        m_(stack.equation.hidden),
        gated_(stack.equation.branch == Branch::gated),
        linear_(stack.equation.branch == Branch::linear),
        units_(units),
        input_(input ? units * d_ * kGroup<T> : 0),
        activation_(activation ? units * m_ * kGroup<T> : 0),
        branch_(branch ? units * d_ * kGroup<T> : 0),
        up_(panels(m_) * units * kGroup<T> * kGroup<T>),
        gate_(gated_ ? panels(m_) * units * kGroup<T> * kGroup<T> : 0),
        down_(linear_ ? 0 : panels(d_) * units * kGroup<T> * kGroup<T>),
        sums_(units * sums_size(stack)),
        jobs_(static_cast<size_t>(units)) {
    double* sums = sums_.get();
    for (int64_t i = 0; i < units; ++i) {
      GradientJob<T>& job = jobs_[static_cast<size_t>(i)];
      job = {};
      if (input) job.input = input_.get() + i * d_ * kGroup<T>;
      if (activation) job.activation = activation_.get() + i * m_ * kGroup<T>;
      if (branch) job.normalized_branch = branch_.get() + i * d_ * kGroup<T>;
      job.panel_stride = panel_stride();
      job.up_panel = up_.get() + i * kGroup<T> * kGroup<T>;
      job.gate_panel = gate_.get() + (gated_ ? i * kGroup<T> * kGroup<T> : 0);
      job.down_panel = down_.get() + (linear_ ? 0 : i * kGroup<T> * kGroup<T>);
      for (int field = kBUp; field < kFields; ++field)
        if (stack.fields[field].data) {
          sum(job.sums, field) = sums;
          sums += stack.field_size(field);
        }
    }
  }

  GradientJob<T>* job(int64_t unit) { return &jobs_[static_cast<size_t>(unit)]; }
  int64_t panel_stride() const { return units_ * kGroup<T> * kGroup<T>; }

  // The panels of one matrix's right factor, at the first of an owner's units.
  const T* right(int field, int64_t first) const {
    const Buffer<T>& from = field == kDown ? down_ : field == kGate ? gate_ : up_;
    return from.get() + first * kGroup<T> * kGroup<T>;
  }

  // The left factor of one matrix, here or where it was kept.
  const T* left(int field, int64_t unit, const T* state, const T* activation) const {
    const GradientJob<T>& made = jobs_[static_cast<size_t>(unit)];
    if (field == kDown) return made.activation ? made.activation : activation;
    return made.input ? made.input : state;
  }

  static double*& sum(VectorSums& sums, int field) {
    switch (field) {
      case kBUp: return sums.b_up;
      case kBDown: return sums.b_down;
      case kBGate: return sums.b_gate;
      default: return field < kShift ? sums.gain[field - kGain] : sums.shift[field - kShift];
    }
  }

 private:
  static int64_t panels(int64_t n) { return (n + kGroup<T> - 1) / kGroup<T>; }
  static int64_t sums_size(const Stack<T>& stack) {
    int64_t size = 0;
    for (int field = kBUp; field < kFields; ++field)
      if (stack.fields[field].data) size += stack.field_size(field);
    return size;
  }

  const int64_t d_, m_;
  const bool gated_, linear_;
  const int64_t units_;
  Buffer<T> input_, activation_, branch_, up_, gate_, down_;
  Buffer<double> sums_;
  std::vector<GradientJob<T>> jobs_;
};

// How many layers are kept so: the products of one are taken while the groups go through the next.
template <class T>
int64_t layers_at_once(const Stack<T>& stack) {
  return std::min<int64_t>(stack.depth, 2);
}

// The values of a row-major array, pooled.
template <class T>
Pool pool_values(const T* values, int64_t count) {
  Pool pool;
  double sums[4] = {}, top = 0;
  bool nan = false;
  for (int64_t i = 0; i < count; ++i) {
    const double x = std::abs(static_cast<double>(values[i]));
    top = std::max(top, x);
    nan |= std::isnan(x);
    sums[i & 3] += x * x;
  }
  pool.max_abs = nan ? std::nan("") : top;
  pool.sum_squares = nan ? std::nan("") : (sums[0] + sums[1]) + (sums[2] + sums[3]);
  if (nan || top == 0 || (top > 0x1p-480 && top < 0x1p480) || std::isinf(top)) return pool;
  int exponent;
  std::frexp(top, &exponent);
  pool.power = std::ldexp(1.0, std::clamp(-exponent, -1022, 1022));
  pool.sum_squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double x = static_cast<double>(values[i]) * pool.power;
    pool.sum_squares += x * x;
  }
  return pool;
}

// The vjp of one call, over some of the replicates.
template <class T>
class Vjp {
 public:
  Vjp(const Stack<T>& stack, const TapeArrays<T>& tape, int64_t probes, const Rows<T>& cotangent,
          const VjpResults<T>& results, const Resources& resources, const Kernels<T>& table,
          const std::vector<int64_t>& replicates)
      : stack_(stack),
        tape_(tape),
        probes_(probes),
        cotangent_(cotangent),
        results_(results),
        resources_(resources),
        table_(table),
        plan_(make_plan(stack, probes, resources.threads, replicates)),
        replicates_(replicates),
        units_(static_cast<int64_t>(plan_.units.size())),
        d_(stack.equation.width),
        gradients_(units_ * d_ * kGroup<T>),
        pools_(static_cast<size_t>((pauses() ? 1 : stack.depth + 1) * units_)),
        scratch_size_(table_.scratch(stack.equation, kMaxJobs)),
        scratch_(scratch_size_ * resources.threads),
        lines_(results.only_rms ? resources.threads * kOuterRows * std::max(d_, stack.equation.hidden) : 0) {
    if (results.weight_gradients) prepare_weights();
  }

  void run() {
    if (pauses())
      run_by_layer();
    else
      run_through();
  }

 private:
  // Units [first, last) whose weight gradients are added up: those of a weight set, or of a replicate alone.
  struct Owner {
    int64_t index, first, last;
  };
  struct Line {
    int64_t owner;
    int field;
    int64_t first, last;
  };

  bool stopped() const { return resources_.stop(); }
  // Whether something looks at all groups of a layer, which then wait for each other.
  bool pauses() const { return results_.weight_gradients || !results_.quantiles.empty(); }
  bool active(int place) const {
    return stack_.equation.norm[place] != Norm::none || stack_.fields[kGain + place].data ||
           stack_.fields[kShift + place].data;
  }
  // The sums of the gradient at state l, one a unit: kept for all states, or for the one that all groups wait at.
  Pool* pools_at(int64_t l) { return pools_.data() + (pauses() ? 0 : l * units_); }
  T* gradient(int64_t unit) const { return gradients_.get() + unit * d_ * kGroup<T>; }

  void run_through() {
    Shares(plan_.batches, stack_.depth + 1)
        .run(resources_.threads, resources_.stop, [&](const Batch& batch, int64_t step, int worker) {
          make_gradients(batch, stack_.depth - step, worker);
        });
    if (stopped()) return;
    for (int64_t l = 0; l <= stack_.depth; ++l) reduce(l);
  }

  void run_by_layer() {
    for (int64_t l = stack_.depth; l >= 0 && !stopped(); --l) {
      run_layer(l, static_cast<int64_t>(plan_.batches.size()));
      if (!stopped()) reduce(l);
    }
    if (!stopped()) run_layer(-1, 0);
  }

  // While batches make the gradient at state l, threads that are done with theirs take the outer products of the block
  // that was passed before.
  void run_layer(int64_t l, int64_t batches) {
    const bool products = results_.weight_gradients && l + 1 < stack_.depth;
    const auto lines = products ? static_cast<int64_t>(lines_of_layer_.size()) : 0;
    if (products) find_left(l + 1);
    parallel(resources_.threads, batches + lines, [&](int64_t i, int worker) {
      if (i < batches)
        make_gradients(plan_.batches[static_cast<size_t>(i)], l, worker);
      else
        matrix_lines(static_cast<size_t>(i - batches), l + 1, worker);
    });
    if (products && !stopped()) reduce_weights(l + 1);
  }

  GradientStore<T>& store(int64_t l) { return *stores_[static_cast<size_t>(l % 2)]; }

  void prepare_weights() {
    for (int64_t l = 0; l < layers_at_once(stack_); ++l)
      stores_[l].reset(new GradientStore<T>(stack_, units_, active(kPre), !tape_.activation, active(kOutput)));
    for (int64_t i = 0; i < units_; ++i) {
      const int64_t r = plan_.units[static_cast<size_t>(i)].replicate;
      const int64_t index = results_.only_rms ? r : stack_.set_of[r];
      if (owners_.empty() || owners_.back().index != index) owners_.push_back({index, i, i});
      owners_.back().last = i + 1;
    }
    for (size_t o = 0; o < owners_.size(); ++o)
      for (const int field : {kUp, kDown, kGate}) {
        if (!stack_.fields[field].data) continue;
        const int64_t rows = field == kDown ? stack_.equation.hidden : d_;
        for (int64_t k = 0; k < rows; k += kOuterRows)
          lines_of_layer_.push_back({static_cast<int64_t>(o), field, k, std::min<int64_t>(rows, k + kOuterRows)});
      }
    line_pools_.resize(lines_of_layer_.size());
    examples_.reserve(static_cast<size_t>(units_));
    for (const Unit& unit : plan_.units) examples_.push_back(unit.examples);
    for (auto& left : left_) left.resize(static_cast<size_t>(units_));
  }

  // The gradient at state l of some units, from the one after.
  void make_gradients(const Batch& batch, int64_t l, int worker) {
    if (l == stack_.depth)
      enter(batch);
    else
      pass(batch, l, worker);
    if (l > 0) return;
    for (int64_t i = batch.first; i < batch.last; ++i) {
      const Unit& unit = plan_.units[static_cast<size_t>(i)];
      write_group(gradient(i), d_, unit,
                  results_.input_gradient + (unit.probe * stack_.replicates + unit.replicate) * stack_.examples * d_);
    }
  }

  void enter(const Batch& batch) {
    Pool* const pools = pools_at(stack_.depth);
    for (int64_t i = batch.first; i < batch.last; ++i) {
      const Unit& unit = plan_.units[static_cast<size_t>(i)];
      read_group(cotangent_, unit.probe, unit.replicate, unit, d_, gradient(i));
      Moments moments;
      table_.moments(gradient(i), d_, unit.examples, &moments, pools + i, nullptr);
    }
  }

  void pass(const Batch& batch, int64_t l, int worker) {
    VjpJob<T> jobs[kMaxJobs];
    const int64_t count = batch.last - batch.first;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t i = batch.first + j;
      const Unit& unit = plan_.units[static_cast<size_t>(i)];
      jobs[j].state = state_of(stack_, tape_.states, unit, l);
      jobs[j].gradient = gradient(i);
      jobs[j].tape = tape_of(stack_, tape_, unit, l);
      jobs[j].weights = results_.weight_gradients ? store(l).job(i) : nullptr;
      jobs[j].examples = unit.examples;
    }
    table_.vjp(stack_.equation, stack_.layer(batch.set, l, l - 1), jobs, count, scratch_.get() + worker * scratch_size_,
                   resources_.stop);
    Pool* const pools = pools_at(l) + batch.first;
    for (int64_t j = 0; j < count; ++j) pools[j] = jobs[j].pool;
  }

  void reduce(int64_t l) {
    const Pool* const pools = pools_at(l);
    for (const int64_t r : replicates_)
      for (int64_t p = 0; p < probes_; ++p) {
        const int64_t pr = p * stack_.replicates + r, first = plan_.first_unit[static_cast<size_t>(pr)];
        const int64_t at = pr * (stack_.depth + 1) + l, values = stack_.examples * d_;
        Pool pool;
        for (int64_t g = 0; g < stack_.groups(); ++g) merge(pool, pools[first + g]);
        results_.rms[at] = root_mean_square(pool, values);
        results_.max_abs[at] = values ? pool.max_abs : std::nan("");
        results_.nonfinite[at] = pool.nonfinite;
        if (!results_.quantiles.empty()) quantiles(first, at);
      }
  }

  void quantiles(int64_t first, int64_t at) {
    std::vector<double> values;
    values.reserve(static_cast<size_t>(stack_.examples * d_));
    for (int64_t i = first; i < first + stack_.groups(); ++i)
      for (int64_t k = 0; k < d_; ++k)
        for (int lane = 0; lane < plan_.units[static_cast<size_t>(i)].examples; ++lane)
          values.push_back(std::abs(static_cast<double>(gradient(i)[k * kGroup<T> + lane])));
    magnitude_quantiles(values, results_.quantiles,
                        results_.gradient_quantiles + at * static_cast<int64_t>(results_.quantiles.size()));
  }

  void find_left(int64_t l) {
    for (int64_t i = 0; i < units_; ++i) {
      const Unit& unit = plan_.units[static_cast<size_t>(i)];
      const T* const state = state_of(stack_, tape_.states, unit, l);
      const T* const activation = tape_of(stack_, tape_, unit, l).activation;
      for (const int field : {kUp, kDown, kGate})
        if (stack_.fields[field].data) left_[field][static_cast<size_t>(i)] = store(l).left(field, i, state, activation);
    }
  }

  void reduce_weights(int64_t l) {
    if (results_.only_rms) reduce_matrix_rms(l);
    for (const Owner& owner : owners_)
      for (int field = kBUp; field < kFields; ++field)
        if (stack_.fields[field].data) vector_gradient(owner, field, l);
    scale_gradients(l);
  }

  void matrix_lines(size_t index, int64_t l, int worker) {
    if (stopped()) return;
    const Line& line = lines_of_layer_[index];
    const Owner& owner = owners_[static_cast<size_t>(line.owner)];
    const int64_t rows = line.field == kDown ? stack_.equation.hidden : d_;
    const int64_t columns = line.field == kDown ? d_ : stack_.equation.hidden;
    OuterProduct<T> product{};
    product.left = left_[line.field].data() + owner.first;
    product.right = store(l).right(line.field, owner.first);
    product.panel_stride = store(l).panel_stride();
    product.examples = examples_.data() + owner.first;
    product.groups = owner.last - owner.first;
    product.columns = columns;
    // branch_scale is already in the gradient that the up products see; a branch that is left out adds nothing.
    const bool off = stack_.branch_scale[l] == 0;
    product.factor = static_cast<T>(stack_.equation.weight_scale) * (line.field == kDown ? stack_.branch_scale[l] : T(1));
    product.stride = columns;
    product.destination =
        results_.only_rms ? lines_.get() + worker * kOuterRows * std::max(d_, stack_.equation.hidden)
                          : results_.weights[line.field] + ((owner.index * stack_.depth + l) * rows + line.first) * columns;
    if (off)
      std::fill_n(product.destination, (line.last - line.first) * columns, T(0));
    else
      table_.outer(product, line.first, line.last, scratch_.get() + worker * scratch_size_);
    if (results_.only_rms) line_pools_[index] = pool_values(product.destination, (line.last - line.first) * columns);
  }

  void reduce_matrix_rms(int64_t l) {
    for (size_t i = 0; i < lines_of_layer_.size();) {
      const Line& line = lines_of_layer_[i];
      Pool pool;
      for (; i < lines_of_layer_.size() && lines_of_layer_[i].owner == line.owner && lines_of_layer_[i].field == line.field;
           ++i)
        merge(pool, line_pools_[i]);
      const int64_t r = owners_[static_cast<size_t>(line.owner)].index;
      results_.weight_rms[line.field][r * stack_.depth + l] = root_mean_square(pool, d_ * stack_.equation.hidden);
    }
  }

  void vector_gradient(const Owner& owner, int field, int64_t l) {
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
      for (int64_t k = 0; k < size; ++k)
        results_.weights[field][at * size + k] = static_cast<T>(total[static_cast<size_t>(k)]);
  }

  void scale_gradients(int64_t l) {
    if (!results_.branch_scale) return;
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

  const Stack<T>& stack_;
  const TapeArrays<T>& tape_;
  const int64_t probes_;
  const Rows<T>& cotangent_;
  const VjpResults<T>& results_;
  const Resources& resources_;
  const Kernels<T>& table_;
  const Plan plan_;
  const std::vector<int64_t>& replicates_;
  const int64_t units_, d_;
  Buffer<T> gradients_;
  std::vector<Pool> pools_;
  const int64_t scratch_size_;
  Buffer<T> scratch_, lines_;
  std::unique_ptr<GradientStore<T>> stores_[2];  // of even and odd layers
  std::vector<Owner> owners_;
  std::vector<Line> lines_of_layer_;
  std::vector<Pool> line_pools_;
  std::vector<int> examples_;
  std::vector<const T*> left_[3];
};

// Replicates to take at a time, so that what weight gradients keep of every group stays within this; those of one
// weight set stay together.
constexpr int64_t kStoreBytes = 256 << 20;

template <class T>
std::vector<std::vector<int64_t>> replicate_blocks(const Stack<T>& stack, const VjpResults<T>& results) {
  const std::vector<int64_t> order = by_set(stack);
  if (!results.weight_gradients) return {order};
  const int64_t each = layers_at_once(stack) * stack.groups() * 64 * (3 * stack.equation.width + 3 * stack.equation.hidden);
  std::vector<std::vector<int64_t>> blocks;
  int64_t used = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const bool together = i > 0 && !results.only_rms && stack.set_of[order[i]] == stack.set_of[order[i - 1]];
    if (blocks.empty() || (!together && used + each > kStoreBytes)) {
      blocks.emplace_back();
      used = 0;
    }
    blocks.back().push_back(order[i]);
    used += each;
  }
  return blocks;
}

}  // namespace

template <class T>
void vjp(const Stack<T>& stack, const TapeArrays<T>& tape, int64_t probes, const Rows<T>& cotangent,
             const VjpResults<T>& results, const Resources& resources) {
  const Kernels<T> table = kernels<T>(resources.target);
  for (const std::vector<int64_t>& replicates : replicate_blocks(stack, results)) {
    Vjp<T>(stack, tape, probes, cotangent, results, resources, table, replicates).run();
    if (resources.stop()) return;
  }
}

template void vjp(const Stack<float>&, const TapeArrays<float>&, int64_t, const Rows<float>&,
                      const VjpResults<float>&, const Resources&);
template void vjp(const Stack<double>&, const TapeArrays<double>&, int64_t, const Rows<double>&,
                      const VjpResults<double>&, const Resources&);

}  // namespace depthgauge::stack
