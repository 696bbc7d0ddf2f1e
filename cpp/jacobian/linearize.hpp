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

// Rows picked before they are used, for what is just being stored in pieces is slow to load as a whole.
constexpr int64_t kLines = 8;

// Where vectors can be permuted by 32-bit words, live units are picked a vector at a time.
#if defined(__AVX2__)
constexpr bool kPermutes = true;
#else
constexpr bool kPermutes = false;
#endif
constexpr int kWords = kVectorBytes / 4;

template <class T>
DG_INLINE Vec<T> permute_words(Vec<T> v, const int32_t* words) {
#if defined(__AVX512F__)
  return bit_cast<Vec<T>>(_mm512_permutexvar_ps(_mm512_loadu_si512(words), bit_cast<__m512>(v)));
#elif defined(__AVX2__)
  const auto w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
  return bit_cast<Vec<T>>(_mm256_permutevar8x32_ps(bit_cast<__m256>(v), w));
#else
  static_cast<void>(words);
  return v;
#endif
}

// Picks the live units out of a row of all hidden ones.
template <class T>
struct Picker {
  const int32_t* units;
  int64_t live, hidden;
  int32_t* words;   // of each whole vector of hidden units, those that bring its live ones to the front
  int32_t* starts;  // how many are live before it

  // Integers of `room`.
  static DG_INLINE int64_t memory(int64_t hidden) { return hidden / kWidth<T> * (kWords + 1); }

  DG_INLINE Picker(const int32_t* live_units, int64_t count, int64_t of, int32_t* room)
      : units(live_units), live(count), hidden(of), words(room), starts(room + of / kWidth<T> * kWords) {
    if (!kPermutes || live == hidden) return;
    constexpr int each = kWords / kWidth<T>;
    int64_t a = 0;
    for (int64_t v = 0; v < hidden / kWidth<T>; ++v) {
      int32_t* const w = words + v * kWords;
      starts[v] = static_cast<int32_t>(a);
      int used = 0;
      for (; a < live && units[a] < (v + 1) * kWidth<T>; ++a)
        for (int i = 0; i < each; ++i) w[used++] = static_cast<int32_t>((units[a] - v * kWidth<T>) * each + i);
      for (; used < kWords; ++used) w[used] = 0;
    }
  }

  // Room for whole vectors at `to`; what comes behind the live units there is of no use.
  DG_INLINE void operator()(const T* row, T* to) const {
    if (live == hidden) {
      int64_t j = 0;
      for (; j + kWidth<T> <= hidden; j += kWidth<T>) store(to + j, load(row + j));
      for (; j < hidden; ++j) to[j] = row[j];
      return;
    }
    int64_t a = 0;
    if (kPermutes) {
      const int64_t whole = hidden / kWidth<T>;
      for (int64_t v = 0; v < whole; ++v)
        store(to + starts[v], permute_words<T>(load(row + v * kWidth<T>), words + v * kWords));
      a = live;
      while (a > 0 && units[a - 1] >= whole * kWidth<T>) --a;
    }
    for (; a < live; ++a) to[a] = row[units[a]];
  }
};

template <class T>
DG_INLINE Row<T> times_unless_zero(Row<T> x, Row<T> factor) {
  for (int i = 0; i < kVectors; ++i) x.v[i] = select<T>(factor.v[i] == Vec<T>{}, Vec<T>{}, x.v[i] * factor.v[i]);
  return x;
}

// A: the rows of the first matrix, at the live units, with the derivatives of activation and pre norm.
template <class T>
void linearize_input(const Equation& eq, const Layer<T>& layer, const Linearized<T>& at, T* sums, int32_t* room) {
  const int64_t d = eq.width, m = eq.hidden, groups = groups_of<T>(at.live);
  const RowNorm<T>& pre = at.norm[kPre];
  const bool gated = eq.branch == Branch::gated, sum = pre.centers || pre.projects;
  const Picker<T> pick(at.units, at.live, m, room);
  T *const mean = sums, *const along = sums + row_size<T>(m);  // one after the other
  for (int64_t j = 0; j < 2 * row_size<T>(m); j += kLanes<T>) store_row(mean + j, Row<T>{});
  const int64_t line = row_size<T>(m);
  T* const gate_lines = at.lines + kLines * line;
  for (int64_t first = 0; first < d; first += kLines) {
    const int64_t count = smaller(kLines, d - first);
    for (int64_t i = 0; i < count; ++i) {
      pick(layer.up + (first + i) * m, at.lines + i * line);
      if (gated) pick(layer.gate + (first + i) * m, gate_lines + i * line);
    }
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t j = g * kLanes<T>;
      const Row<T> slope = load_row(at.slope + j);
      Row<T> mean_here = load_row(mean + j), along_here = load_row(along + j);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t k = first + i;
        Row<T> w = load_row(at.lines + i * line + j);
        if (gated)
          w = times_unless_zero<T>(w, slope) +
              times_unless_zero<T>(load_row(gate_lines + i * line + j), load_row(at.gate_slope + j));
        else
          w = w * slope;
        if (pre.active) w = pre.gain[k] == 0 ? Row<T>{} : w * splat_row(pre.gain[k]);
        store_row(piece(at.a, k, g), w);
        if (!sum) continue;
        mean_here = mean_here + w;
        along_here = fma(w, splat_row(pre.hat[k]), along_here);
      }
      store_row(mean + j, mean_here);
      store_row(along + j, along_here);
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
  const bool norm = at.norm[kOutput].active;
  const Row<T> inner = splat_row(static_cast<T>(eq.weight_scale)), outer = splat_row(layer.branch_scale);
  const int64_t whole = d / kLanes<T>;
  for (int64_t a = 0; a < at.live; ++a) {
    const T* const from = layer.down + static_cast<int64_t>(at.units[a]) * d;
    if (whole < groups) {
      store_row(at.lines, Row<T>{});
      for (int64_t k = whole * kLanes<T>; k < d; ++k) at.lines[k - whole * kLanes<T>] = from[k];
    }
    for (int64_t g = 0; g < groups; ++g) {
      Row<T> r = load_row(g < whole ? from + g * kLanes<T> : at.lines) * inner;
      if (!norm) r = r * outer;
      store_row(piece(at.c, a, g), r);
    }
    if (!norm) continue;
    apply_row_norm(at.norm[kOutput], d, piece(at.c, a, 0), at.c.group);
    for (int64_t g = 0; g < groups; ++g) store_row(piece(at.c, a, g), load_row(piece(at.c, a, g)) * outer);
  }
}

template <class T>
int64_t linearized_memory(const Equation& eq) {
  const int64_t d = eq.width, m = eq.hidden;
  const int64_t widest = row_size<T>(d > m ? d : m);
  return padded(m + kLanes<T>) + padded(Picker<T>::memory(m)) + (10 + 2 * kLines) * widest +
         pieces_size<T>(d, m) + pieces_size<T>(m, d) + pieces_size<T>(d, d);
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
  at.lines = take(2 * kLines * widest);
  T* const sums = take(2 * widest);
  auto* const room = reinterpret_cast<int32_t*>(take(padded(Picker<T>::memory(m))));
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
  linearize_input(eq, layer, at, sums, room);
  if (!linear) linearize_output(eq, layer, at);
}

}  // namespace
