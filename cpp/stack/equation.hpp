// The block equation as plain data.
#pragma once

#include <cstdint>

namespace depthgauge::stack {

// Each option once: enumerations, names and dispatch are made from these lists.  An activation comes with the struct
// that computes it, in activations.hpp.
#define DG_BRANCHES(X) X(mlp) X(linear) X(gated)
#define DG_NORMS(X) X(none) X(rms) X(layer) X(center) X(dyt) X(rms_detached) X(layer_detached)
#define DG_ACTIVATIONS(X)  \
  X(relu, Relu)            \
  X(leaky_relu, LeakyRelu) \
  X(tanh, Tanh) X(sigmoid, Sigmoid) X(gelu, Gelu) X(gelu_tanh, GeluTanh) X(silu, Silu) X(abs, Abs) X(identity, Identity)

#define DG_ENUMERATOR(name, ...) name,
enum class Branch { DG_BRANCHES(DG_ENUMERATOR) };
enum class Norm { DG_NORMS(DG_ENUMERATOR) };
enum class Activation { DG_ACTIVATIONS(DG_ENUMERATOR) };
#undef DG_ENUMERATOR

// The three places of a norm in a block.
enum Place { kPre, kOutput, kPost, kPlaces };

struct Equation {
  Branch branch;
  Activation activation;
  Norm norm[kPlaces];
  double eps;
  double slope;
  double dyt_alpha;
  double weight_scale;
  int64_t width;
  int64_t hidden;
};

}  // namespace depthgauge::stack
