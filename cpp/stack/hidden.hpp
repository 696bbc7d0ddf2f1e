// The hidden units of a block, between its two products: activation, its derivative, and what counts as live.
#pragma once

#include "stack/activations.hpp"
#include "stack/epilogue.hpp"
#include "stack/kernels.hpp"
#include "stack/norms.hpp"

namespace {

using depthgauge::stack::Activation;
using depthgauge::stack::Branch;
using depthgauge::stack::one_bit;

template <Activation>
struct Function;
#define DG_FUNCTION(name, Struct) \
  template <>                     \
  struct Function<Activation::name> : Struct {};
DG_ACTIVATIONS(DG_FUNCTION)
#undef DG_FUNCTION

// Where a chunk of hidden units leaves what derivatives and statistics need; null where not wanted.
template <class T>
struct HiddenRecord {
  uint16_t* positive = nullptr;
  T* derivative = nullptr;
  T* gate_value = nullptr;
  T* abs_derivative = nullptr;
  unsigned char* unit_live = nullptr;
  unsigned examples = 0;  // one bit each
  int64_t live = 0;
  int64_t saturated = 0;

  DG_INLINE void mark_live(int64_t j, unsigned live_bits) const {
    // Groups of one layer share the flags, and may be on several threads.
    if (unit_live && live_bits && !__atomic_load_n(unit_live + j, __ATOMIC_RELAXED))
      __atomic_store_n(unit_live + j, static_cast<unsigned char>(1), __ATOMIC_RELAXED);
  }
};

template <class T>
DG_INLINE Row<T> affine_row(const T* product, int64_t j, Vec<T> scale, const T* bias) {
  Row<T> z = load_row(product + j * kLanes<T>);
  if (bias) {
    const Vec<T> b = splat(bias[j]);
    for (int i = 0; i < kVectors; ++i) z.v[i] = fma(scale, z.v[i], b);
  } else {
    for (int i = 0; i < kVectors; ++i) z.v[i] *= scale;
  }
  return z;
}

// z = scale * product + bias in place.
template <class T>
DG_INLINE void add_bias(T* product, int64_t n, T scale, const T* bias) {
  for (int64_t j = 0; j < n; ++j) emit(affine_row(product, j, splat(scale), bias), product + j * kLanes<T>);
}

// value = phi(scale * product + bias) in place, times `up` for a gated branch.
template <class T, Activation kind, bool Record>
void activate_with(T* product, int64_t n, T scale, const T* bias, const ActivationParameters<T>& parameters,
                   const T* up, HiddenRecord<T>& record) {
  constexpr bool relu = kind == Activation::relu;
  const Vec<T> s = splat(scale), tenth = splat(T(0.1)), hundredth = splat(T(0.01));
  // Local, for a store to the flags may alias the record.
  const HiddenRecord<T> to = record;
  int64_t live_count = 0, saturated_count = 0;
  for (int64_t j = 0; j < n; ++j) {
    const Row<T> z = emit(affine_row(product, j, s, bias));
    Row<T> value, derivative;
    Function<kind>::template eval<T>(z, parameters, value, derivative);
    unsigned positive = 0, live = 0, saturated = 0;
    for (int i = 0; Record && i < kVectors; ++i) {
      const int shift = i * kWidth<T>;
      if (one_bit(kind)) positive |= bits(z.v[i] > Vec<T>{}) << shift;
      if (relu) {
        saturated |= bits(z.v[i] <= Vec<T>{}) << shift;
      } else {
        const Vec<T> a = abs(derivative.v[i]);
        const Int<T> number = z.v[i] == z.v[i];
        live |= bits((a > tenth) & number) << shift;
        saturated |= bits((a < hundredth) & number) << shift;
      }
    }
    if (Record) {
      if (relu) live = positive;
      live &= to.examples;
      live_count += __builtin_popcount(live);
      saturated_count += __builtin_popcount(saturated & to.examples);
      to.mark_live(j, live);
      if (to.positive) to.positive[j] = static_cast<uint16_t>(positive);
      if (to.abs_derivative) {
        Row<T> a = derivative;
        for (int i = 0; i < kVectors; ++i) a.v[i] = abs(a.v[i]);
        store_row(to.abs_derivative + j * kLanes<T>, a);
      }
    }
    if (up) {
      const Row<T> y = load_row(up + j * kLanes<T>);
      value = emit(value);
      if (Record && to.gate_value) store_row(to.gate_value + j * kLanes<T>, value);
      value = value * y;
      for (int i = 0; i < kVectors; ++i)
        derivative.v[i] = select<T>(derivative.v[i] == Vec<T>{}, Vec<T>{}, derivative.v[i] * y.v[i]);
    }
    if (Record && to.derivative) store_row(to.derivative + j * kLanes<T>, derivative);
    emit(value, product + j * kLanes<T>);
  }
  record.live += live_count;
  record.saturated += saturated_count;
}

template <class T, bool Record>
void activate(const Equation& eq, T* product, int64_t n, const T* bias, const T* up, HiddenRecord<T>& record) {
  const ActivationParameters<T> p{static_cast<T>(eq.slope)};
  const T scale = static_cast<T>(eq.weight_scale);
  switch (eq.activation) {
#define DG_CASE(name, Struct) \
  case Activation::name: return activate_with<T, Activation::name, Record>(product, n, scale, bias, p, up, record);
    DG_ACTIVATIONS(DG_CASE)
#undef DG_CASE
  }
}

// t = phi'(z) * (scale * t) in place.  A unit whose derivative is 0 passes exactly 0 on, whatever arrives.
template <class T>
void apply_derivative(const Equation& eq, T* t, int64_t n, T scale, const uint16_t* positive, const T* derivative) {
  const Vec<T> s = splat(scale);
  if (positive) {
    const Vec<T> other = splat(eq.activation == Activation::relu ? T(0) : static_cast<T>(eq.slope));
    for (int64_t j = 0; j < n; ++j) {
      Row<T> r = load_row(t + j * kLanes<T>);
      for (int i = 0; i < kVectors; ++i) {
        const Vec<T> a = s * r.v[i];
        const Int<T> on = from_bits<T>(static_cast<unsigned>(positive[j]) >> (i * kWidth<T>));
        const Vec<T> off = select<T>(other == Vec<T>{}, Vec<T>{}, other * a);
        r.v[i] = select<T>(on, a, off);
      }
      store_row(t + j * kLanes<T>, r);
    }
  } else {
    for (int64_t j = 0; j < n; ++j) {
      Row<T> r = load_row(t + j * kLanes<T>);
      const Row<T> f = load_row(derivative + j * kLanes<T>);
      for (int i = 0; i < kVectors; ++i) r.v[i] = select<T>(f.v[i] == Vec<T>{}, Vec<T>{}, (s * r.v[i]) * f.v[i]);
      store_row(t + j * kLanes<T>, r);
    }
  }
}

}  // namespace
