// Whole stacks: forward, vjp and jvp over every layer, replicate and example.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "common/resources.hpp"
#include "stack/kernels.hpp"

namespace depthgauge::stack {

enum FieldName { kUp, kDown, kGate, kBUp, kBDown, kBGate, kGain, kShift = kGain + kPlaces, kFields = kShift + kPlaces };

// One weight array: weight set s has layer l at data + index[s] * depth * size + l * size.
template <class T>
struct Field {
  const T* data = nullptr;
  const int64_t* index = nullptr;
  int64_t size = 0;
};

// A block, its weights, and which replicate uses which set of them.
template <class T>
struct Stack {
  Equation equation;
  int64_t depth;
  int64_t replicates;
  int64_t sets;
  int64_t examples;
  const int64_t* set_of;
  const T* branch_scale;  // one a layer, as is the next
  const T* skip_scale;
  Field<T> fields[kFields];

  int64_t groups() const { return (examples + kGroup<T> - 1) / kGroup<T>; }
  int64_t field_size(int field) const;
  // Whether anything happens at a place: a norm, or a gain or shift without one.
  bool active(int place) const {
    return equation.norm[place] != Norm::none || fields[kGain + place].data || fields[kShift + place].data;
  }
  // Layer `index` of a weight set, in a pass that goes on to layer `next`.
  Layer<T> layer(int64_t set, int64_t index, int64_t next) const;
};

// Rows of examples as a caller holds them: element (i, j, b, k) is at data + i * strides[0] + ...; strides in bytes.
template <class T>
struct Rows {
  const char* data;
  int64_t strides[4];
  T at(int64_t i, int64_t j, int64_t b, int64_t k) const {
    T value;
    std::memcpy(&value, data + i * strides[0] + j * strides[1] + b * strides[2] + k * strides[3], sizeof value);
    return value;
  }
};

// Everything a derivative needs, as arrays [replicate][layer][group]...; null where the equation has no use for it.
template <class T>
struct TapeArrays {
  T* states = nullptr;  // depth + 1 layers
  NormFactors<T>* factors[kPlaces] = {};
  T* branch = nullptr;
  T* sum = nullptr;
  uint16_t* positive = nullptr;
  T* derivative = nullptr;
  T* gate_value = nullptr;
  T* activation = nullptr;  // may be left out: it spares weight gradients a product
};

// What a pass measures of every state (depth + 1 values a replicate) or block (depth): X(name, type, of).
#define DG_FORWARD_STATISTICS(X)    \
  X(rms, double, state)             \
  X(max_abs, double, state)         \
  X(batch_mean_norm, double, state) \
  X(nonfinite, int64_t, state)      \
  X(branch_rms, double, block)      \
  X(live_fraction, double, block)   \
  X(dead_units, double, block)      \
  X(saturation, double, block)
#define DG_VJP_STATISTICS(X) \
  X(rms, double, state)      \
  X(max_abs, double, state)  \
  X(nonfinite, int64_t, state)
#define DG_POINTER(name, type, of) type* name;

// Results are [replicate][...]; null where not wanted.
template <class T>
struct ForwardResults {
  T* output;
  DG_FORWARD_STATISTICS(DG_POINTER)
  std::vector<double> quantiles;
  double *state_quantiles, *derivative_quantiles, *cosine;
};

// Results are [probe][replicate][...].
template <class T>
struct VjpResults {
  T* input_gradient;
  DG_VJP_STATISTICS(DG_POINTER)
  std::vector<double> quantiles;
  double* gradient_quantiles;
  // Weight gradients, [set][layer][...] by field, or their root mean squares, [replicate][layer].
  bool weight_gradients;
  bool only_rms;
  T* weights[kFields];
  double* weight_rms[kFields];
  double *branch_scale, *skip_scale;
};
#undef DG_POINTER

template <class T>
struct JvpResults {
  T* output;
  double* rms;
};

// `rows` has strides for (unused, replicate of x, example, feature); replicate r starts from rows at x_of[r].
template <class T>
void forward(const Stack<T>& stack, const Rows<T>& rows, const int64_t* x_of, const TapeArrays<T>& tape,
             const ForwardResults<T>& results, const Resources& resources);

template <class T>
void vjp(const Stack<T>& stack, const TapeArrays<T>& tape, int64_t probes, const Rows<T>& cotangent,
         const VjpResults<T>& results, const Resources& resources);

template <class T>
void jvp(const Stack<T>& stack, const TapeArrays<T>& tape, int64_t probes, const Rows<T>& rows,
         const JvpResults<T>& results, const Resources& resources);

template <class T>
Kernels<T> kernels(Target target);

}  // namespace depthgauge::stack
