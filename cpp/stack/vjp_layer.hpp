// The derivative of one block in reverse mode, over groups of examples that share its weights.
#pragma once

#include "stack/forward_layer.hpp"
#include "stack/jvp_layer.hpp"
#include "stack/transpose.hpp"

namespace {

using depthgauge::stack::GradientJob;
using depthgauge::stack::VjpJob;

// gradient <- N_post'^T(gradient), and the sums for its gain and shift.
template <class T>
void vjp_post(const Equation& eq, const Layer<T>& layer, VjpJob<T>& job, T* spare) {
  if (job.weights)
    norm_parameter_sums(eq.norm[kPost], eq, job.tape.sum, job.tape.factors[kPost], job.gradient, 1.0, job.examples,
                        job.weights->sums.gain[kPost], job.weights->sums.shift[kPost]);
  norm_derivative(
      eq.norm[kPost], eq, job.tape.sum, job.tape.factors[kPost], job.gradient,
      GainBefore<T>{splat_row(T(1)), layer.gain[kPost]},
      [&](int64_t k, int, Row<T> x) DG_INLINE_LAMBDA { store_row(spare + k * kLanes<T>, x); }, []() DG_INLINE_LAMBDA {});
  __builtin_memcpy(job.gradient, spare, static_cast<size_t>(eq.width) * kGroupBytes);
}

// The gradient at the branch, before branch_scale, from that at the residual sum.
template <class T>
void vjp_output(const Equation& eq, const Layer<T>& layer, VjpJob<T>& job, T* branch_gradient) {
  const NormFactors<T>* factors = job.tape.factors[kOutput];
  if (job.weights) {
    const double scale = static_cast<double>(layer.branch_scale);
    norm_parameter_sums(eq.norm[kOutput], eq, job.tape.branch, factors, job.gradient, scale, job.examples,
                        job.weights->sums.gain[kOutput], job.weights->sums.shift[kOutput]);
  }
  norm_derivative(
      eq.norm[kOutput], eq, job.tape.branch, factors, job.gradient,
      GainBefore<T>{splat_row(T(1)), layer.gain[kOutput]},
      [&](int64_t k, int, Row<T> x) DG_INLINE_LAMBDA { store_row(branch_gradient + k * kLanes<T>, x); }, []() DG_INLINE_LAMBDA {});
}

// sum over features and examples of x * y, in double throughout: gradients of scales are.
template <class T, class X, class Y>
DG_INLINE double inner_product(int64_t n, int examples, X x, Y y) {
  WideSum<T> sum;
  for (int64_t k = 0; k < n; ++k) sum.add_product(x(k), y(k));
  double lanes[kLanes<T>], total = 0;
  __builtin_memcpy(lanes, sum.v, sizeof sum.v);
  for (int i = 0; i < examples; ++i) total += lanes[i];
  return total;
}

// Gradients of branch_scale and skip_scale, as far as they do not run over hidden units.
template <class T>
void scale_gradients(const Equation& eq, const Layer<T>& layer, VjpJob<T>& job, const T* branch_gradient) {
  const auto rows = [](const T* p) { return [p](int64_t k) DG_INLINE_LAMBDA { return load_row(p + k * kLanes<T>); }; };
  GradientJob<T>& w = *job.weights;
  w.skip_scale = inner_product<T>(eq.width, job.examples, rows(job.gradient), rows(job.state));
  w.branch_scale = 0;
  if (active(eq, layer, kOutput)) {
    T* r = w.normalized_branch;
    apply_norm(eq.norm[kOutput], eq, job.tape.branch, job.tape.factors[kOutput], layer.gain[kOutput],
               layer.shift[kOutput], r);
    w.branch_scale = inner_product<T>(eq.width, job.examples, rows(job.gradient), rows(r));
  } else if (layer.b_down && eq.branch != Branch::linear) {
    w.branch_scale = inner_product<T>(eq.width, job.examples, rows(branch_gradient),
                                      [&](int64_t k) DG_INLINE_LAMBDA { return splat_row(layer.b_down[k]); });
  }
}

template <class T>
DG_INLINE void sums_if_wanted(const T* group, int64_t n, double scale, int examples, double* sums) {
  const auto row = [&](int64_t k) DG_INLINE_LAMBDA { return load_row(group + k * kLanes<T>); };
  if (sums) scaled_totals_of<T>(n, examples, scale, row, sums);
}

// gradient at the state = N_pre'^T(a du) + skip_scale * dy; without the first where the branch is left out.
template <class T>
void vjp_input(const Equation& eq, const Layer<T>& layer, VjpJob<T>& job, const T* du) {
  const int64_t d = eq.width;
  const bool off = layer.branch_scale == 0;
  if (job.weights)
    norm_parameter_sums(eq.norm[kPre], eq, job.state, job.tape.factors[kPre], du, off ? 0 : eq.weight_scale,
                        job.examples, job.weights->sums.gain[kPre], job.weights->sums.shift[kPre]);
  const Term<T> skipped(layer.skip_scale);
  MomentSum<T> sum;
  norm_derivative(
      eq.norm[kPre], eq, job.state, job.tape.factors[kPre], du,
      GainBefore<T>{splat_row(static_cast<T>(eq.weight_scale)), layer.gain[kPre]},
      [&](int64_t k, int chain, Row<T> x) DG_INLINE_LAMBDA {
        T* g = job.gradient + k * kLanes<T>;
        const Row<T> y = off ? skipped(load_row(g)) : skipped(load_row(g)) + x;
        sum.add(chain, y);
        store_row(g, y);
      },
      [&]() DG_INLINE_LAMBDA { sum.flush(); });
  pool_of(sum, job.gradient, d, job.examples, &job.pool);
}

template <class T>
void vjp_layer(const Equation& eq, const Layer<T>& layer, VjpJob<T>* jobs, int64_t count, T* memory,
                   const Stop& stop) {
  const int64_t d = eq.width, m = eq.hidden, chunk = chunk_size<T>(eq);
  const bool linear = eq.branch == Branch::linear, gated = eq.branch == Branch::gated;
  const bool weights = count > 0 && jobs[0].weights;
  // Whether the input of the down product must be made again.
  const bool again = weights && !jobs[0].tape.activation;
  // A scale of 0 leaves the branch out, infinities and all; only its own gradient still looks inside.
  const bool off = layer.branch_scale == 0;
  Scratch<T> scratch{memory};
  const T* dr[kMaxJobs];
  T* du[kMaxJobs];
  const T* input[kMaxJobs];
  for (int64_t g = 0; g < count; ++g) {
    VjpJob<T>& job = jobs[g];
    du[g] = scratch.take_group(d);
    if (active(eq, layer, kPost)) vjp_post(eq, layer, job, du[g]);
    dr[g] = job.gradient;
    if (active(eq, layer, kOutput)) {
      T* buffer = scratch.take_group(d);
      vjp_output(eq, layer, job, buffer);
      dr[g] = buffer;
    }
    if (weights) {
      GradientJob<T>& w = *job.weights;
      scale_gradients(eq, layer, job, dr[g]);
      if (!linear) {
        sums_if_wanted(dr[g], d, static_cast<double>(layer.branch_scale), job.examples, w.sums.b_down);
        transpose_group(dr[g], d, w.down_panel, w.panel_stride);
      }
      input[g] = job.state;
      if (active(eq, layer, kPre)) {
        apply_norm(eq.norm[kPre], eq, job.state, job.tape.factors[kPre], layer.gain[kPre], layer.shift[kPre],
                   w.input);
        input[g] = w.input;
      }
    }
    if (m == 0 || off) set_zero(du[g], d);
  }
  T* hidden = scratch.take_group(chunk);
  T* gate = scratch.take_group(chunk);
  T* up_path = scratch.take_group(chunk);
  T* packed_up = scratch.take(packed_size<T>(d, chunk));
  T* packed_gate = scratch.take(packed_size<T>(d, chunk));
  T* rows_up = scratch.take(d * packed_rows_stride<T>(chunk));
  T* rows_gate = scratch.take(d * packed_rows_stride<T>(chunk));
  T* rows_down = scratch.take(chunk * packed_rows_stride<T>(d));
  const T factor = static_cast<T>(linear ? 1 : eq.weight_scale) * layer.branch_scale;
  for (int64_t j0 = 0; j0 < m && (weights || !off); j0 += chunk) {
    const int64_t n = smaller(chunk, m - j0);
    // The block of `down` is contiguous; that of `up` only where one chunk is the whole matrix.
    const T* down = linear ? nullptr : layer.down + j0 * d;
    const T *up = layer.up + j0, *gates = gated ? layer.gate + j0 : nullptr;
    int64_t down_stride = d, up_stride = m;
    if (!kRowsInPlace && !linear) {
      down_stride = packed_rows_stride<T>(d);
      pack_rows(down, d, n, d, rows_down, down_stride);
      down = rows_down;
    }
    if (!kRowsInPlace || (n < m && count > 1)) {
      up_stride = packed_rows_stride<T>(n);
      pack_rows(up, m, d, n, rows_up, up_stride);
      if (gated) pack_rows(gates, m, d, n, rows_gate, up_stride);
      up = rows_up;
      gates = rows_gate;
    }
    const Columns<T> columns_up(again ? layer.up + j0 : nullptr, m, d, n, false, packed_up);
    const Columns<T> columns_gate(again && gated ? layer.gate + j0 : nullptr, m, d, n, false, packed_gate);
    Prefetch soon = fetch_next(eq, layer, j0, chunk, count);
    for (int64_t g = 0; g < count; ++g) {
      if (stop()) return;
      VjpJob<T>& job = jobs[g];
      const int64_t at = j0 * kLanes<T>;
      const uint16_t* positive = job.tape.positive ? job.tape.positive + j0 : nullptr;
      const T* derivative = job.tape.derivative ? job.tape.derivative + at : nullptr;
      soon.group(derivative, n, steps_of(n, d));
      if (linear)
        __builtin_memcpy(hidden, dr[g] + at, static_cast<size_t>(n) * kGroupBytes);
      else
        multiply_group<T, Layout::rows>(down, down_stride, d, n, dr[g], hidden, false, soon);
      T* dz = hidden;
      if (gated) {
        __builtin_memcpy(gate, hidden, static_cast<size_t>(n) * kGroupBytes);
        dz = gate;
      }
      if (weights) {
        GradientJob<T>& w = *job.weights;
        const T* const value = (again ? w.activation : job.tape.activation) + at;
        HiddenRecord<T> none;
        if (again)
          hidden_chunk<T, false>(eq, layer, columns_up, columns_gate, input[g], job.examples, j0, n, w.activation + at,
                                 up_path, none, soon);
        if (!active(eq, layer, kOutput))
          w.branch_scale += (linear ? 1 : eq.weight_scale) *
                            inner_product<T>(
                                n, job.examples, [&](int64_t k) DG_INLINE_LAMBDA { return load_row(value + k * kLanes<T>); },
                                [&](int64_t k) DG_INLINE_LAMBDA { return load_row(hidden + k * kLanes<T>); });
      }
      if (j0 + n == m) soon.group(job.state, d, steps_of(d, n));
      if (off) {
        set_zero(hidden, n);
        set_zero(gate, n);
      } else if (gated) {
        apply_derivative(eq, dz, n, factor, positive, derivative);
        apply_derivative<T>(eq, hidden, n, factor, nullptr, job.tape.gate_value + at);
        multiply_group<T, Layout::rows>(gates, up_stride, n, d, dz, du[g], j0 > 0, soon);
        multiply_group<T, Layout::rows>(up, up_stride, n, d, hidden, du[g], true, soon);
      } else {
        apply_derivative(eq, dz, n, factor, positive, derivative);
        multiply_group<T, Layout::rows>(up, up_stride, n, d, dz, du[g], j0 > 0, soon);
      }
      if (weights) {
        GradientJob<T>& w = *job.weights;
        const int64_t panel = j0 / kLanes<T> * w.panel_stride;
        transpose_group(hidden, n, w.up_panel + panel, w.panel_stride);
        sums_if_wanted(hidden, n, 1.0, job.examples, w.sums.b_up ? w.sums.b_up + j0 : nullptr);
        if (gated) {
          transpose_group(gate, n, w.gate_panel + panel, w.panel_stride);
          sums_if_wanted(gate, n, 1.0, job.examples, w.sums.b_gate ? w.sums.b_gate + j0 : nullptr);
        }
      }
    }
  }
  for (int64_t g = 0; g < count; ++g) vjp_input(eq, layer, jobs[g], du[g]);
}

}  // namespace
