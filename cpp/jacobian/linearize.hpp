// A block linearized at one example.
#pragma once

#include "jacobian/pieces.hpp"
#include "stack/layer.hpp"

namespace {

using depthgauge::jacobian::Form;
using depthgauge::jacobian::Linearized;
using depthgauge::jacobian::Request;
using depthgauge::jacobian::RowNorm;

// `to` = gain * (r - mean(r) - hat * mean(hat * r)) * rescaling, for a row r in pieces `step` apart.
template <class T>
void apply_row_norm(const RowNorm<T>& norm, int64_t d, T* row, int64_t step) {
  const int64_t groups = groups_of<T>(d);
  T mean = 0, along = 0;
  if (norm.centers || norm.projects) {
    LaneSum<T> sum, product;
    each_feature(
        groups,
        [&](int64_t g, int chain) DG_INLINE_LAMBDA {
          const Row<T> r = load_row(row + g * step);
          sum.add(chain, r);
          product.add_product(chain, r, load_row(norm.hat + g * kLanes<T>));
        },
        [&]() DG_INLINE_LAMBDA {
          sum.flush();
          product.flush();
        });
    const auto total = [d](const LaneSum<T>& s) DG_INLINE_LAMBDA {
      double lanes[kLanes<T>], all = 0;
      s.result(lanes);
      for (int i = 0; i < kLanes<T>; ++i) all += lanes[i];
      return static_cast<T>(all / static_cast<double>(d));
    };
    if (norm.centers) mean = total(sum);
    if (norm.projects) along = total(product);
  }
  const Row<T> m = splat_row(mean), a = splat_row(along), shrink = splat_row(norm.shrink);
  const Row<T> power = splat_row(norm.power), scale = splat_row(norm.scale);
  for (int64_t g = 0; g < groups; ++g) {
    Row<T> r = load_row(row + g * step);
    if (norm.centers) r = r - m;
    if (norm.projects) r = r - load_row(norm.hat + g * kLanes<T>) * a;
    if (norm.rescales) r = r * shrink * power * scale;
    const Row<T> gain = load_row(norm.gain + g * kLanes<T>);
    for (int i = 0; i < kVectors; ++i) r.v[i] = select<T>(gain.v[i] == Vec<T>{}, Vec<T>{}, r.v[i] * gain.v[i]);
    store_row(row + g * step, r);
  }
}

// The derivative of the norm at one place, of example `lane` of the group x.
template <class T>
void find_row_norm(const Equation& eq, depthgauge::stack::Place place, const T* x, const NormFactors<T>* factors,
                   const T* gain, int lane, T* hat, T* gains, RowNorm<T>* out) {
  const int64_t d = eq.width;
  const Norm kind = eq.norm[place];
  *out = {hat,
          gains,
          T(1),
          T(1),
          T(1),
          centers(kind),
          kind == Norm::rms || kind == Norm::layer,
          rescales(kind),
          kind != Norm::none || gain != nullptr};
  if (!out->active || d == 0) return;
  for (int64_t k = d; k < groups_of<T>(d) * kLanes<T>; ++k) hat[k] = gains[k] = 0;
  for (int64_t k = 0; k < d; ++k) gains[k] = gain ? gain[k] : T(1);
  if (kind == Norm::none) return;
  for (int64_t k = 0; k < d; ++k) hat[k] = x[k * kLanes<T> + lane];
  if (kind == Norm::dyt) {
    const Row<T> alpha = splat_row(static_cast<T>(eq.dyt_alpha));
    for (int64_t k = 0; k < d; k += kLanes<T>) {
      Row<T> value, slope;
      tanh(alpha * load_row(hat + k), value, slope);
      store_row(gains + k, load_row(gains + k) * (slope * alpha));
    }
    return;
  }
  const T shrink = factors->shrink[lane], power = factors->power[lane], scale = factors->scale[lane];
  const T first = hat[0] * shrink, mean = factors->mean[lane];
  out->shrink = shrink;
  out->power = power;
  out->scale = scale;
  if (centers(kind))
    for (int64_t k = 0; k < d; ++k) hat[k] = ((hat[k] * shrink - first) - mean) * power * scale;
  else
    for (int64_t k = 0; k < d; ++k) hat[k] = hat[k] * shrink * power * scale;
}

// The hidden units whose derivative is not exactly 0, and the derivatives times `scale`.
template <class T>
int64_t find_live_units(const Equation& eq, const Tape<T>& tape, int lane, T scale, int32_t* units, T* slope,
                        T* gate_slope) {
  int64_t live = 0;
  if (tape.positive) {
    const T other = eq.activation == Activation::relu ? T(0) : static_cast<T>(eq.slope);
    for (int64_t j = 0; j < eq.hidden; ++j) {
      const T s = (tape.positive[j] >> lane) & 1 ? T(1) : other;
      units[live] = static_cast<int32_t>(j);
      slope[live] = s * scale;
      live += s != 0;
    }
  } else {
    for (int64_t j = 0; j < eq.hidden; ++j) {
      const T s = tape.derivative[j * kLanes<T> + lane];
      const T value = tape.gate_value ? tape.gate_value[j * kLanes<T> + lane] : T(0);
      units[live] = static_cast<int32_t>(j);
      // In a gated branch the derivative is that of the gate's product, and phi that of the other.
      slope[live] = (tape.gate_value ? value : s) * scale;
      if (tape.gate_value) gate_slope[live] = s * scale;
      live += s != 0 || value != 0;
    }
  }
  return live;
}

// to[a] (+)= weights[units[a]] * slope[a]; a slope of exactly 0 leaves its term out.
template <class T, bool Add>
DG_INLINE void gather(const T* weights, const int32_t* units, const T* slope, int64_t live, bool all, T* to) {
  for (int64_t a = 0; a < live; ++a) {
    const T w = weights[all ? a : units[a]];
    const T term = Add && slope[a] == 0 ? T(0) : w * slope[a];
    to[a] = Add ? to[a] + term : term;
  }
}

// A: the rows of the first matrix, at the live units, with the derivatives of activation and pre norm.
template <class T>
void linearize_input(const Equation& eq, const Layer<T>& layer, const Linearized<T>& at, T* sums) {
  const int64_t d = eq.width, m = eq.hidden, groups = groups_of<T>(at.live);
  const RowNorm<T>& pre = at.norm[kPre];
  const bool all = at.live == m, gated = eq.branch == Branch::gated, sum = pre.centers || pre.projects;
  T *const mean = sums, *const along = sums + row_size<T>(m);  // one after the other
  for (int64_t j = 0; sum && j < 2 * row_size<T>(m); j += kLanes<T>) store_row(mean + j, Row<T>{});
  for (int64_t a = at.live; a < groups * kLanes<T>; ++a) at.line[a] = 0;
  for (int64_t k = 0; k < d; ++k) {
    if (gated) {
      for (int64_t a = 0; a < at.live; ++a) at.line[a] = 0;
      gather<T, true>(layer.up + k * m, at.units, at.slope, at.live, all, at.line);
      gather<T, true>(layer.gate + k * m, at.units, at.gate_slope, at.live, all, at.line);
    } else if (all) {
      gather<T, false>(layer.up + k * m, at.units, at.slope, at.live, true, at.line);
    } else {
      gather<T, false>(layer.up + k * m, at.units, at.slope, at.live, false, at.line);
    }
    const T gain = pre.active ? pre.gain[k] : T(1);
    const Row<T> factor = splat_row(gain), hat = splat_row(sum ? pre.hat[k] : T(0));
    for (int64_t g = 0; g < groups; ++g) {
      Row<T> w = gain == 0 ? Row<T>{} : load_row(at.line + g * kLanes<T>) * factor;
      store_row(piece(at.a, k, g), w);
      if (!sum) continue;
      T *const s = mean + g * kLanes<T>, *const p = along + g * kLanes<T>;
      if (pre.centers) store_row(s, load_row(s) + w);
      if (pre.projects) store_row(p, fma(w, hat, load_row(p)));
    }
  }
  if (!sum && !pre.rescales) return;
  const Row<T> n = splat_row(static_cast<T>(d)), shrink = splat_row(pre.shrink), power = splat_row(pre.power);
  const Row<T> scale = splat_row(pre.scale);
  for (int64_t j = 0; sum && j < 2 * row_size<T>(m); j += kLanes<T>) {
    Row<T> r = load_row(mean + j);
    for (int i = 0; i < kVectors; ++i) r.v[i] /= n.v[i];
    store_row(mean + j, r);
  }
  for (int64_t k = 0; k < d; ++k) {
    const Row<T> hat = splat_row(pre.hat[k]);
    for (int64_t g = 0; g < groups; ++g) {
      T* const to = piece(at.a, k, g);
      Row<T> w = load_row(to);
      if (pre.centers) w = w - load_row(mean + g * kLanes<T>);
      if (pre.projects) w = w - hat * load_row(along + g * kLanes<T>);
      if (pre.rescales) w = w * shrink * power * scale;
      store_row(to, w);
    }
  }
}

// C: the columns of the last matrix, at the live units, with the derivative of the output norm and the branch's scale.
template <class T>
void linearize_output(const Equation& eq, const Layer<T>& layer, const Linearized<T>& at) {
  const int64_t d = eq.width, groups = groups_of<T>(d);
  const Row<T> inner = splat_row(static_cast<T>(eq.weight_scale)), outer = splat_row(layer.branch_scale);
  for (int64_t k = d; k < groups * kLanes<T>; ++k) at.line[k] = 0;
  for (int64_t a = 0; a < at.live; ++a) {
    const T* const from = layer.down + static_cast<int64_t>(at.units[a]) * d;
    __builtin_memcpy(at.line, from, static_cast<size_t>(d) * sizeof(T));
    for (int64_t g = 0; g < groups; ++g)
      store_row(at.line + g * kLanes<T>, load_row(at.line + g * kLanes<T>) * inner);
    if (at.norm[kOutput].active) apply_row_norm(at.norm[kOutput], d, at.line, kLanes<T>);
    for (int64_t g = 0; g < groups; ++g) store_row(piece(at.c, a, g), load_row(at.line + g * kLanes<T>) * outer);
  }
}

template <class T>
int64_t linearized_memory(const Equation& eq) {
  const int64_t d = eq.width, m = eq.hidden;
  const int64_t widest = row_size<T>(d > m ? d : m);
  return padded(m + kLanes<T>) + 11 * widest + pieces_size<T>(d, m) + pieces_size<T>(m, d) + pieces_size<T>(d, d);
}

template <class T>
void linearize(const Equation& eq, const Layer<T>& layer, const Tape<T>& tape, const T* state, int lane,
               Request request, T* memory, Linearized<T>* out) {
  const int64_t d = eq.width, m = eq.hidden, widest = row_size<T>(d > m ? d : m);
  Linearized<T>& at = *out;
  const auto take = [&](int64_t size) DG_INLINE_LAMBDA {
    T* const from = memory;
    memory += size;
    return from;
  };
  at.units = reinterpret_cast<int32_t*>(take(padded(m + kLanes<T>)));
  at.slope = take(widest);
  at.gate_slope = take(widest);
  at.line = take(widest);
  T* const sums = take(2 * widest);
  const auto norm_at = [&](depthgauge::stack::Place place, const T* x) {
    T *const hat = take(widest), *const gains = take(widest);
    find_row_norm(eq, place, x, tape.factors[place], layer.gain[place], lane, hat, gains, &at.norm[place]);
  };
  norm_at(kPre, state);
  norm_at(kOutput, tape.branch);
  norm_at(kPost, tape.sum);
  const bool linear = eq.branch == Branch::linear;
  const RowNorm<T>& output = at.norm[kOutput];
  at.skip = layer.skip_scale;
  at.live = layer.branch_scale == 0
                ? 0
                : find_live_units(eq, tape, lane, static_cast<T>(eq.weight_scale), at.units, at.slope, at.gate_slope);
  if (request != Request::least)
    at.form = Form::whole;
  else if (linear)
    at.form = output.centers || output.projects ? Form::whole : Form::select;
  else
    at.form = at.live > d ? Form::whole : Form::factors;
  if (linear) {
    // What acts on single columns of the branch acts on those of A.
    const bool here = at.form == Form::select && output.active;
    for (int64_t a = 0; a < at.live; ++a) {
      const T gain = here ? output.gain[at.units[a]] : T(1);
      at.slope[a] = gain == 0 ? T(0) : at.slope[a] * gain * layer.branch_scale;
      if (here && output.rescales) at.slope[a] = at.slope[a] * output.shrink * output.power * output.scale;
    }
  }
  T *const a = take(pieces_size<T>(d, m)), *const c = take(pieces_size<T>(m, d));
  at.a = at.form == Form::whole ? rows_at(a, at.live) : panels_at(a, d);
  at.c = request == Request::separate ? rows_at(c, d) : panels_at(c, at.live);
  at.product = panels_at(take(pieces_size<T>(d, d)), d);
  linearize_input(eq, layer, at, sums);
  if (!linear) linearize_output(eq, layer, at);
}

}  // namespace
