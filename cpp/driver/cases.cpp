#include "driver/cases.hpp"

#include <sstream>

#include "stack/names.hpp"

namespace depthgauge::driver {
namespace {

using stack::Activation;
using stack::Branch;
using stack::Norm;

using stack::kActivationNames;
using stack::kBranchNames;
using stack::kNormNames;

constexpr int kBranches = std::size(kBranchNames), kNorms = std::size(kNormNames);
constexpr int kActivations = std::size(kActivationNames);
const char* const kLayoutNames[kLayouts] = {"contiguous", "reversed", "examples_inside", "misaligned", "repeated"};

// Deals every value equally often, in an order that repeats late.
template <class V>
class Deck {
 public:
  Deck(std::vector<V> values, Random& random) : values_(std::move(values)), random_(random) {}
  V deal() {
    if (left_ == 0) left_ = values_.size();
    const auto i = static_cast<size_t>(random_.below(static_cast<int64_t>(left_--)));
    std::swap(values_[i], values_[left_]);
    return values_[left_];
  }

 private:
  std::vector<V> values_;
  size_t left_ = 0;
  Random& random_;
};

Case plain_case() {
  Case c{};
  c.equation.branch = Branch::mlp;
  c.equation.activation = Activation::gelu;
  c.equation.norm[stack::kPre] = Norm::rms;
  c.equation.eps = 0.01;
  c.equation.slope = 0.1;
  c.equation.dyt_alpha = 0.5;
  c.equation.weight_scale = 1;
  c.equation.width = c.equation.hidden = 17;
  c.biases = true;
  c.depth = 2;
  c.replicates = 1;
  c.examples = 9;
  c.probes = 1;
  c.threads = 3;
  return c;
}

template <class Change>
Case changed(Change change) {
  Case c = plain_case();
  change(c);
  if (c.equation.branch == Branch::linear) c.equation.hidden = c.equation.width;
  return c;
}

}  // namespace

std::string describe(const Case& c, const char* precision, Target target) {
  const auto at = [](const auto& names, auto i) { return names[static_cast<int>(i)]; };
  const stack::Equation& eq = c.equation;
  std::ostringstream s;
  s << precision << " " << name(target) << ": " << at(kBranchNames, eq.branch) << " "
    << at(kActivationNames, eq.activation) << ", norms " << at(kNormNames, eq.norm[stack::kPre]) << "/"
    << at(kNormNames, eq.norm[stack::kOutput]) << "/" << at(kNormNames, eq.norm[stack::kPost]) << ", eps " << eq.eps
    << ", weight_scale " << eq.weight_scale << ", d " << eq.width << ", m " << eq.hidden << ", L " << c.depth << ", R "
    << c.replicates << ", B " << c.examples << ", P " << c.probes << (c.biases ? ", biases" : "")
    << (c.gains ? ", gains" : "") << (c.shifts ? ", shifts" : "") << (c.own_weights ? ", own weights" : "")
    << (c.own_inputs ? ", own inputs" : "") << (c.quantiles ? ", quantiles" : "") << (c.cosine ? ", cosine" : "")
    << (c.activations ? ", activations" : "") << ", " << at(kLayoutNames, c.layout) << ", threads " << c.threads
    << ", seed " << c.seed;
  return s.str();
}

std::vector<Case> covering_cases(uint64_t salt, int stride) {
  Random random(salt);
  // Around the vectors, groups and blocks of the kernels; the larger, slower ones less often.
  const std::vector<int64_t> sizes = {0, 1, 1, 3, 3, 8, 8, 17, 17, 17, 64, 130};
  Deck<int64_t> width(sizes, random), hidden(sizes, random);
  Deck<int64_t> examples({0, 1, 7, 8, 9, 9, 17, 40}, random), depth({0, 1, 1, 2, 2, 3}, random);
  Deck<int64_t> replicates({1, 2, 3}, random), probes({1, 2}, random);
  Deck<int> threads({2, 3, 7}, random), layout({0, 1, 2, 3, 4}, random);
  Deck<double> eps({0.01, 0.01, 0.01, 1e-6, 0}, random), weight_scale({1, 1, 1, 0.7, 1.5, 0}, random);
  Deck<int> biases({0, 1}, random), gains({0, 1}, random), shifts({0, 1}, random);
  Deck<int> own_weights({0, 1}, random), own_inputs({0, 1}, random);
  Deck<int> quantiles({0, 0, 1}, random), cosine({0, 0, 1}, random);
  std::vector<Case> cases;
  // Neighboring salts take different cases, and so do those two apart: a precision on two instruction sets.
  int index = static_cast<int>(salt / 2) % stride;
  for (int b = 0; b < kBranches; ++b)
    for (int a = 0; a < kActivations; ++a)
      for (int n = 0; n < kNorms; ++n) {
        Case c = plain_case();
        c.equation.branch = static_cast<Branch>(b);
        c.equation.activation = static_cast<Activation>(a);
        // As n runs over the norms, so does each place.
        const auto turn = static_cast<int>(salt % kNorms);
        c.equation.norm[stack::kPre] = static_cast<Norm>(n);
        c.equation.norm[stack::kOutput] = static_cast<Norm>((2 * n + a + turn) % kNorms);
        c.equation.norm[stack::kPost] = static_cast<Norm>((3 * n + a / 2 + b + 2 * turn) % kNorms);
        c.equation.width = width.deal();
        c.equation.hidden = b == static_cast<int>(Branch::linear) ? c.equation.width : hidden.deal();
        c.equation.eps = eps.deal();
        c.equation.weight_scale = weight_scale.deal();
        c.examples = examples.deal();
        c.depth = depth.deal();
        c.replicates = replicates.deal();
        c.probes = probes.deal();
        c.threads = threads.deal();
        c.layout = static_cast<Layout>(layout.deal());
        c.biases = biases.deal() != 0;
        c.gains = gains.deal() != 0;
        c.shifts = shifts.deal() != 0;
        c.own_weights = own_weights.deal() != 0;
        c.own_inputs = own_inputs.deal() != 0;
        c.quantiles = quantiles.deal() != 0;
        c.cosine = cosine.deal() != 0;
        c.seed = salt * 1000 + static_cast<uint64_t>(cases.size());
        c.activations = c.seed % 2 != 0;
        if (index++ % stride == 0) cases.push_back(c);
      }
  return cases;
}

std::vector<Case> special_cases() {
  return {
      // Several chunks of hidden units.
      changed([](Case& c) { c.equation.width = 130, c.equation.hidden = 300; }),
      changed([](Case& c) { c.equation.branch = Branch::linear, c.equation.width = 200; }),
      changed([](Case& c) {
        c.equation.branch = Branch::gated, c.equation.activation = Activation::relu;
        c.equation.width = 130, c.equation.hidden = 190, c.examples = 17;
      }),
      // Inner products beyond one block.
      changed([](Case& c) { c.equation.width = 5, c.equation.hidden = 261; }),
      changed([](Case& c) { c.equation.width = 261, c.equation.hidden = 5, c.replicates = 2; }),
      // More groups than one call of a kernel takes, of several weight sets.
      changed([](Case& c) { c.equation.width = 3, c.equation.hidden = 2, c.examples = 270, c.replicates = 2; }),
      changed([](Case& c) {
        c.equation.width = 2, c.equation.hidden = 3, c.examples = 135, c.replicates = 3, c.own_weights = true;
        c.equation.activation = Activation::leaky_relu;
      }),
      // More layers than one segment of the forward pass.
      changed([](Case& c) { c.equation.width = 3, c.depth = 67, c.replicates = 2, c.own_inputs = true; }),
      // Nothing to do.
      changed([](Case& c) { c.replicates = 0; }),
      changed([](Case& c) { c.probes = 0, c.quantiles = c.cosine = true; }),
      changed([](Case& c) { c.examples = 0, c.quantiles = c.cosine = true; }),
      changed([](Case& c) { c.equation.width = c.equation.hidden = 0, c.quantiles = c.cosine = true; }),
      // Gains and shifts where there is no norm.
      changed([](Case& c) { c.equation.norm[stack::kPre] = Norm::none, c.gains = c.shifts = true; }),
  };
}

std::vector<Case> special_jacobian_cases() {
  constexpr int64_t kWide = 64, kExamples = 2;
  std::vector<Case> cases = special_cases();
  for (Case& c : cases)
    if (c.equation.width > kWide) c.examples = std::min(c.examples, kExamples);
  return cases;
}

std::vector<Case> concurrent_cases() {
  return {
      changed([](Case& c) { c.equation.width = 24, c.equation.hidden = 40, c.examples = 70, c.depth = 4; }),
      changed([](Case& c) {
        c.equation.branch = Branch::gated, c.equation.activation = Activation::silu, c.replicates = 3;
        c.own_weights = c.gains = c.shifts = c.quantiles = true, c.examples = 20;
      }),
      changed([](Case& c) {
        c.equation.branch = Branch::linear, c.equation.activation = Activation::relu, c.examples = 50, c.depth = 5;
        c.equation.norm[stack::kPost] = Norm::layer, c.replicates = 2, c.cosine = true;
      }),
  };
}

}  // namespace depthgauge::driver
