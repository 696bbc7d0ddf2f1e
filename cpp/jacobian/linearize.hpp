// A block linearized at one example.
#pragma once

#include "jacobian/live_units.hpp"
#include "jacobian/row_norm.hpp"

namespace {

using depthgauge::jacobian::Form;
using depthgauge::jacobian::Linearized;
using depthgauge::jacobian::Request;
using depthgauge::stack::kPlaces;

// Rows picked before they are used, for what is just being stored in parts is slow to load as a whole.
constexpr int64_t kLines = 8;

// What linearizing needs on the way to its result; rows are as long as those of all hidden units.
template <class T>
struct LinearizeWorkspace {
  T *slope, *gate_slope;     // by what the product of each live unit with `up`, and with `gate`, counts
  T *lines, *gate_lines;     // kLines rows of `up` and `gate` at the live units
  T *means, *projections;    // over A's rows, by column: their mean, and that of their products with the norm's hat
  int32_t* picks;            // of the Picker
};

// Cuts memory into arrays, each of whole cache lines.
template <class T>
struct Cutter {
  T* next;
  DG_INLINE T* take(int64_t elements) {
    T* const from = next;
    next += elements;
    return from;
  }
  DG_INLINE int32_t* take_integers(int64_t count) { return reinterpret_cast<int32_t*>(take(padded(count))); }
};

// Elements of a row of tiles as wide as the block or its hidden units.
template <class T>
DG_INLINE int64_t widest_row(const Equation& eq) {
  return row_size<T>(eq.width > eq.hidden ? eq.width : eq.hidden);
}

template <class T>
int64_t block_workspace(const Equation& eq) {
  const int64_t d = eq.width, m = eq.hidden;
  constexpr int64_t rows = 4 + 2 * kLines + 2 * kPlaces;
  return padded(m + kLanes<T>) + padded(Picker<T>::workspace(m)) + rows * widest_row<T>(eq) + tiles_size<T>(d, m) +
         tiles_size<T>(m, d) + tiles_size<T>(d, d);
}

template <class T>
LinearizeWorkspace<T> cut_workspace(const Equation& eq, Cutter<T>& memory) {
  const int64_t row = widest_row<T>(eq);
  LinearizeWorkspace<T> work;
  work.slope = memory.take(row);
  work.gate_slope = memory.take(row);
  work.lines = memory.take(kLines * row);
  work.gate_lines = memory.take(kLines * row);
  work.means = memory.take(row);
  work.projections = memory.take(row);
  work.picks = memory.take_integers(Picker<T>::workspace(eq.hidden));
  return work;
}

template <class T>
DG_INLINE Row<T> times_unless_zero(Row<T> x, Row<T> factor) {
  for (int i = 0; i < kVectors; ++i) x.v[i] = select<T>(factor.v[i] == Vec<T>{}, Vec<T>{}, x.v[i] * factor.v[i]);
  return x;
}

// Some rows of A before the derivative of the pre norm, whose gain they have; their sums are added to those of A.
template <class T>
DG_INLINE void linearize_lines(const Equation& eq, const Layer<T>& layer, const Linearized<T>& at,
                               const Picker<T>& pick, int64_t first, int64_t count, const LinearizeWorkspace<T>& work) {
  const int64_t m = eq.hidden, line = row_size<T>(m);
  const RowNorm<T>& pre = at.norm[kPre];
  const bool gated = eq.branch == Branch::gated, sums = pre.centers || pre.projects;
  for (int64_t i = 0; i < count; ++i) {
    pick(layer.up + (first + i) * m, work.lines + i * line);
    if (gated) pick(layer.gate + (first + i) * m, work.gate_lines + i * line);
  }
  for (int64_t g = 0; g < groups_of<T>(at.live); ++g) {
    const int64_t j = g * kLanes<T>;
    const Row<T> slope = load_row(work.slope + j);
    Row<T> mean = load_row(work.means + j), projection = load_row(work.projections + j);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = first + i;
      Row<T> w = load_row(work.lines + i * line + j);
      if (gated)
        w = times_unless_zero<T>(w, slope) +
            times_unless_zero<T>(load_row(work.gate_lines + i * line + j), load_row(work.gate_slope + j));
      else
        w = w * slope;
      if (pre.active) w = pre.gain[k] == 0 ? Row<T>{} : w * splat_row(pre.gain[k]);
      store_row(tile(at.a, k, g), w);
      if (!sums) continue;
      mean = mean + w;
      projection = fma(w, splat_row(pre.hat[k]), projection);
    }
    store_row(work.means + j, mean);
    store_row(work.projections + j, projection);
  }
}

template <class T>
DG_INLINE void divide(T* x, int64_t size, Row<T> by) {
  for (int64_t j = 0; j < size; j += kLanes<T>) {
    Row<T> r = load_row(x + j);
    for (int i = 0; i < kVectors; ++i) r.v[i] /= by.v[i];
    store_row(x + j, r);
  }
}

// The rest of the pre norm's derivative, once the sums over all of A's rows are known.
template <class T>
DG_INLINE void linearize_pre_norm(const Equation& eq, const Linearized<T>& at, const LinearizeWorkspace<T>& work) {
  const RowNorm<T>& pre = at.norm[kPre];
  const bool sums = pre.centers || pre.projects;
  if (!sums && !pre.rescales) return;
  if (sums) {
    const Row<T> n = splat_row(static_cast<T>(eq.width));
    divide(work.means, row_size<T>(eq.hidden), n);
    divide(work.projections, row_size<T>(eq.hidden), n);
  }
  const Row<T> shrink = splat_row(pre.shrink), power = splat_row(pre.power), scale = splat_row(pre.scale);
  for (int64_t k = 0; k < eq.width; ++k) {
    const Row<T> hat = splat_row(pre.hat[k]);
    for (int64_t g = 0; g < groups_of<T>(at.live); ++g) {
      T* const to = tile(at.a, k, g);
      Row<T> w = load_row(to);
      if (pre.centers) w = w - load_row(work.means + g * kLanes<T>);
      if (pre.projects) w = w - hat * load_row(work.projections + g * kLanes<T>);
      if (pre.rescales) w = w * shrink * power * scale;
      store_row(to, w);
    }
  }
}

// A: the rows of the first matrix, at the live units, with the derivatives of activation and pre norm.
template <class T>
void linearize_input(const Equation& eq, const Layer<T>& layer, const Linearized<T>& at,
                     const LinearizeWorkspace<T>& work) {
  const Picker<T> pick(at.units, at.live, eq.hidden, work.picks);
  for (int64_t j = 0; j < row_size<T>(eq.hidden); j += kLanes<T>) {
    store_row(work.means + j, Row<T>{});
    store_row(work.projections + j, Row<T>{});
  }
  for (int64_t first = 0; first < eq.width; first += kLines)
    linearize_lines(eq, layer, at, pick, first, smaller(kLines, eq.width - first), work);
  linearize_pre_norm(eq, at, work);
}

// C: the columns of the last matrix, at the live units, with the derivative of the output norm and the branch's scale.
template <class T>
void linearize_output(const Equation& eq, const Layer<T>& layer, const Linearized<T>& at, T* last_tile) {
  const int64_t d = eq.width, groups = groups_of<T>(d);
  const bool norm = at.norm[kOutput].active;
  const Row<T> inner = splat_row(static_cast<T>(eq.weight_scale)), outer = splat_row(layer.branch_scale);
  const int64_t whole = d / kLanes<T>;
  for (int64_t a = 0; a < at.live; ++a) {
    const T* const from = layer.down + static_cast<int64_t>(at.units[a]) * d;
    if (whole < groups) {
      store_row(last_tile, Row<T>{});
      for (int64_t k = whole * kLanes<T>; k < d; ++k) last_tile[k - whole * kLanes<T>] = from[k];
    }
    for (int64_t g = 0; g < groups; ++g) {
      Row<T> r = load_row(g < whole ? from + g * kLanes<T> : last_tile) * inner;
      if (!norm) r = r * outer;
      store_row(tile(at.c, a, g), r);
    }
    if (!norm) continue;
    apply_row_norm(at.norm[kOutput], d, tile(at.c, a, 0), at.c.group);
    for (int64_t g = 0; g < groups; ++g) store_row(tile(at.c, a, g), load_row(tile(at.c, a, g)) * outer);
  }
}

// How the block is multiplied with, as far as its equation and its live units decide it.
template <class T>
Form form_of(const Equation& eq, const Linearized<T>& at, Request request) {
  const RowNorm<T>& output = at.norm[kOutput];
  if (request != Request::least) return Form::whole;
  if (eq.branch == Branch::linear) return output.centers || output.projects ? Form::whole : Form::select;
  return at.live > eq.width ? Form::whole : Form::factors;
}

// Of a linear branch, the slopes with the branch's scale, and with what an output norm does to single columns of the
// branch, which are those of A.
template <class T>
void scale_linear_slopes(const Linearized<T>& at, T branch_scale, T* slope) {
  const RowNorm<T>& output = at.norm[kOutput];
  const bool here = at.form == Form::select && output.active;
  for (int64_t a = 0; a < at.live; ++a) {
    const T gain = here ? output.gain[at.units[a]] : T(1);
    slope[a] = gain == 0 ? T(0) : slope[a] * gain * branch_scale;
    if (here && output.rescales) slope[a] = slope[a] * output.shrink * output.power * output.scale;
  }
}

template <class T>
void linearize_norms(const Equation& eq, const Layer<T>& layer, const Tape<T>& tape, const T* state, int lane,
                     Cutter<T>& memory, Linearized<T>* out) {
  const T* const inputs[kPlaces] = {state, tape.branch, tape.sum};
  for (int index = 0; index < kPlaces; ++index) {
    const auto place = static_cast<depthgauge::stack::Place>(index);
    T* const hat = memory.take(widest_row<T>(eq));
    T* const gains = memory.take(widest_row<T>(eq));
    find_row_norm(eq, place, inputs[place], tape.factors[place], layer.gain[place], lane, hat, gains,
                  &out->norm[place]);
  }
}

template <class T>
void linearize(const Equation& eq, const Layer<T>& layer, const Tape<T>& tape, const T* state, int lane,
               Request request, T* workspace, Linearized<T>* out) {
  const int64_t d = eq.width, m = eq.hidden;
  const bool linear = eq.branch == Branch::linear;
  Linearized<T>& at = *out;
  Cutter<T> memory{workspace};
  at.units = memory.take_integers(m + kLanes<T>);
  const LinearizeWorkspace<T> work = cut_workspace(eq, memory);
  linearize_norms(eq, layer, tape, state, lane, memory, out);
  at.skip = layer.skip_scale;
  at.live = layer.branch_scale == 0 ? 0
                                    : find_live_units(eq, tape, lane, static_cast<T>(eq.weight_scale), at.units,
                                                      work.slope, work.gate_slope);
  at.form = form_of(eq, at, request);
  if (linear) scale_linear_slopes(at, layer.branch_scale, work.slope);
  T* const a = memory.take(tiles_size<T>(d, m));
  T* const c = memory.take(tiles_size<T>(m, d));
  at.a = at.form == Form::whole ? rows_at(a, at.live) : panels_at(a, d);
  at.c = request == Request::separate ? rows_at(c, d) : panels_at(c, at.live);
  at.product = panels_at(memory.take(tiles_size<T>(d, d)), d);
  linearize_input(eq, layer, at, work);
  if (!linear) linearize_output(eq, layer, at, work.lines);
}

}  // namespace
