// The vjp of one block, its derivative in reverse mode, over groups of examples that share its weights.
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
      [&](int64_t k, int, Row<T> x) DG_INLINE_LAMBDA { store_row(spare + k * kLanes<T>, x); },
      []() DG_INLINE_LAMBDA {});
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
      eq.norm[kOutput], eq, job.tape.branch, factors, job.gradient, GainBefore<T>{splat_row(T(1)), layer.gain[kOutput]},
      [&](int64_t k, int, Row<T> x) DG_INLINE_LAMBDA { store_row(branch_gradient + k * kLanes<T>, x); },
      []() DG_INLINE_LAMBDA {});
}

// sum over features and examples of x * y, in double throughout: gradients of scales are.
template <class T, class X, class Y>
DG_INLINE double inner_product(int64_t n, int examples, X x, Y y) {
  DoubleSum<T> sum;
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

// One call: a layer back for the groups of its jobs.
template <class T>
class VjpLayer {
 public:
  VjpLayer(const Equation& eq, const Layer<T>& layer, VjpJob<T>* jobs, int64_t count, T* memory, const Stop& stop)
      : eq_(eq),
        layer_(layer),
        jobs_(jobs),
        count_(count),
        stop_(stop),
        d_(eq.width),
        m_(eq.hidden),
        chunk_(chunk_size<T>(eq)),
        linear_(eq.branch == Branch::linear),
        gated_(eq.branch == Branch::gated),
        off_(layer.branch_scale == 0),
        weights_(count > 0 && jobs[0].weights),
        again_(weights_ && !jobs[0].tape.activation),
        factor_(static_cast<T>(linear_ ? 1 : eq.weight_scale) * layer.branch_scale),
        scratch_{memory} {}

  void run() {
    for (int64_t g = 0; g < count_; ++g) enter_branch(g);
    take_buffers();
    for (int64_t j0 = 0; j0 < m_ && (weights_ || !off_); j0 += chunk_)
      if (!pass_chunk(j0, smaller(chunk_, m_ - j0))) return;
    for (int64_t g = 0; g < count_; ++g) vjp_input(eq_, layer_, jobs_[g], du_[g]);
  }

 private:
  // Rows of the weights of one chunk of hidden units, as they lie or as copies.
  struct ChunkRows {
    const T *up, *gate, *down;
    int64_t up_stride, down_stride;
  };

  // From the gradient at the next state to that at the branch; weight gradients take what they need of both ends of it.
  void enter_branch(int64_t g) {
    VjpJob<T>& job = jobs_[g];
    du_[g] = scratch_.take_group(d_);
    if (active(eq_, layer_, kPost)) vjp_post(eq_, layer_, job, du_[g]);
    dr_[g] = job.gradient;
    if (active(eq_, layer_, kOutput)) {
      T* buffer = scratch_.take_group(d_);
      vjp_output(eq_, layer_, job, buffer);
      dr_[g] = buffer;
    }
    if (weights_) {
      GradientJob<T>& w = *job.weights;
      scale_gradients(eq_, layer_, job, dr_[g]);
      if (!linear_) {
        sums_if_wanted(dr_[g], d_, static_cast<double>(layer_.branch_scale), job.examples, w.sums.b_down);
        transpose_group(dr_[g], d_, w.down_panel, w.panel_stride);
      }
      input_[g] = job.state;
      if (active(eq_, layer_, kPre)) {
        apply_norm(eq_.norm[kPre], eq_, job.state, job.tape.factors[kPre], layer_.gain[kPre], layer_.shift[kPre],
                   w.input);
        input_[g] = w.input;
      }
    }
    if (m_ == 0 || off_) set_zero(du_[g], d_);
  }

  void take_buffers() {
    hidden_ = scratch_.take_group(chunk_);
    gate_ = scratch_.take_group(chunk_);
    up_path_ = scratch_.take_group(chunk_);
    packed_up_ = scratch_.take(packed_size<T>(d_, chunk_));
    packed_gate_ = scratch_.take(packed_size<T>(d_, chunk_));
    rows_up_ = scratch_.take(d_ * packed_rows_stride<T>(chunk_));
    rows_gate_ = scratch_.take(d_ * packed_rows_stride<T>(chunk_));
    rows_down_ = scratch_.take(chunk_ * packed_rows_stride<T>(d_));
  }

  // Hidden units [j0, j0 + n) of all groups; false where the call is stopped.
  bool pass_chunk(int64_t j0, int64_t n) {
    const ChunkRows rows = rows_of(j0, n);
    const Columns<T> up(again_ ? layer_.up + j0 : nullptr, m_, d_, n, false, packed_up_);
    const Columns<T> gate(again_ && gated_ ? layer_.gate + j0 : nullptr, m_, d_, n, false, packed_gate_);
    Prefetch prefetch = fetch_next(eq_, layer_, j0, chunk_, count_);
    for (int64_t g = 0; g < count_; ++g) {
      if (stop_()) return false;
      VjpJob<T>& job = jobs_[g];
      prefetch.group(job.tape.derivative ? job.tape.derivative + j0 * kLanes<T> : nullptr, n, steps_of(n, d_));
      gradient_at_hidden(g, j0, n, rows, prefetch);
      if (weights_) {
        if (again_) {
          HiddenRecord<T> none;
          hidden_chunk<T, false>(eq_, layer_, up, gate, input_[g], job.examples, j0, n,
                                 job.weights->activation + j0 * kLanes<T>, up_path_, none, prefetch);
        }
        if (!active(eq_, layer_, kOutput)) add_branch_scale(job, j0, n);
      }
      if (j0 + n == m_) prefetch.group(job.state, d_, steps_of(d_, n));
      gradient_at_input(g, j0, n, rows, prefetch);
      if (weights_) keep_gradient(job, j0, n);
    }
    return true;
  }

  // The block of `down` is contiguous; that of `up` only where one chunk is the whole matrix.
  ChunkRows rows_of(int64_t j0, int64_t n) const {
    ChunkRows rows{layer_.up + j0, gated_ ? layer_.gate + j0 : nullptr, linear_ ? nullptr : layer_.down + j0 * d_, m_,
                   d_};
    if (!kRowsInPlace && !linear_) {
      rows.down_stride = packed_rows_stride<T>(d_);
      pack_rows(rows.down, d_, n, d_, rows_down_, rows.down_stride);
      rows.down = rows_down_;
    }
    if (!kRowsInPlace || (n < m_ && count_ > 1)) {
      rows.up_stride = packed_rows_stride<T>(n);
      pack_rows(rows.up, m_, d_, n, rows_up_, rows.up_stride);
      if (gated_) pack_rows(rows.gate, m_, d_, n, rows_gate_, rows.up_stride);
      rows.up = rows_up_;
      rows.gate = rows_gate_;
    }
    return rows;
  }

  // The gradient at what the down product reads, without scales; for a gated branch twice, for either factor.
  void gradient_at_hidden(int64_t g, int64_t j0, int64_t n, const ChunkRows& rows, Prefetch& prefetch) {
    if (linear_)
      __builtin_memcpy(hidden_, dr_[g] + j0 * kLanes<T>, static_cast<size_t>(n) * kGroupBytes);
    else
      multiply_group<T, Layout::rows>(rows.down, rows.down_stride, d_, n, dr_[g], hidden_, false, prefetch);
    if (gated_) __builtin_memcpy(gate_, hidden_, static_cast<size_t>(n) * kGroupBytes);
  }

  // The part of branch_scale's gradient that runs over these hidden units.
  void add_branch_scale(VjpJob<T>& job, int64_t j0, int64_t n) const {
    GradientJob<T>& w = *job.weights;
    const T* const value = (again_ ? w.activation : job.tape.activation) + j0 * kLanes<T>;
    w.branch_scale += (linear_ ? 1 : eq_.weight_scale) *
                      inner_product<T>(
                          n, job.examples, [&](int64_t k) DG_INLINE_LAMBDA { return load_row(value + k * kLanes<T>); },
                          [&](int64_t k) DG_INLINE_LAMBDA { return load_row(hidden_ + k * kLanes<T>); });
  }

  // Through the activation, and on to the input of the branch.
  void gradient_at_input(int64_t g, int64_t j0, int64_t n, const ChunkRows& rows, Prefetch& prefetch) {
    if (off_) {
      set_zero(hidden_, n);
      set_zero(gate_, n);
      return;
    }
    const Tape<T>& tape = jobs_[g].tape;
    const int64_t at = j0 * kLanes<T>;
    T* const dz = gated_ ? gate_ : hidden_;
    apply_derivative(eq_, dz, n, factor_, tape.positive ? tape.positive + j0 : nullptr,
                     tape.derivative ? tape.derivative + at : nullptr);
    if (gated_) {
      apply_derivative<T>(eq_, hidden_, n, factor_, nullptr, tape.gate_value + at);
      multiply_group<T, Layout::rows>(rows.gate, rows.up_stride, n, d_, dz, du_[g], j0 > 0, prefetch);
    }
    multiply_group<T, Layout::rows>(rows.up, rows.up_stride, n, d_, hidden_, du_[g], gated_ || j0 > 0, prefetch);
  }

  // The right factors of the outer products for up and gate, and the sums for their biases.
  void keep_gradient(VjpJob<T>& job, int64_t j0, int64_t n) const {
    GradientJob<T>& w = *job.weights;
    const int64_t panel = j0 / kLanes<T> * w.panel_stride;
    transpose_group(hidden_, n, w.up_panel + panel, w.panel_stride);
    sums_if_wanted(hidden_, n, 1.0, job.examples, w.sums.b_up ? w.sums.b_up + j0 : nullptr);
    if (gated_) {
      transpose_group(gate_, n, w.gate_panel + panel, w.panel_stride);
      sums_if_wanted(gate_, n, 1.0, job.examples, w.sums.b_gate ? w.sums.b_gate + j0 : nullptr);
    }
  }

  const Equation& eq_;
  const Layer<T>& layer_;
  VjpJob<T>* const jobs_;
  const int64_t count_;
  const Stop& stop_;
  const int64_t d_, m_, chunk_;
  const bool linear_, gated_;
  const bool off_;  // a scale of 0 leaves the branch out, infinities and all; only its own gradient still looks inside
  const bool weights_;
  const bool again_;  // the input of the down product is not on the tape
  const T factor_;
  Scratch<T> scratch_;
  // Of each group: the gradients at the branch and at its input, and that input.
  const T* dr_[kMaxJobs];
  T* du_[kMaxJobs];
  const T* input_[kMaxJobs];
  // Of one group and chunk.
  T *hidden_, *gate_, *up_path_;
  T *packed_up_, *packed_gate_, *rows_up_, *rows_gate_, *rows_down_;
};

template <class T>
void vjp_layer(const Equation& eq, const Layer<T>& layer, VjpJob<T>* jobs, int64_t count, T* memory, const Stop& stop) {
  VjpLayer<T>(eq, layer, jobs, count, memory, stop).run();
}

}  // namespace
