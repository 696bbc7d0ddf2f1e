// The jvp of one block, its derivative in forward mode, over groups of examples that share its weights.
#pragma once

#include "stack/layer.hpp"

namespace {

using depthgauge::stack::JvpJob;
using depthgauge::stack::kMaxJobs;

template <class T>
void pool_of(const MomentSum<T>& sum, const T* group, int64_t d, int examples, Pool* out) {
  Moments m;
  finish(sum, group, d, &m);
  *out = pool(m, examples);
}

// next tangent = N_post'(skip_scale * t + branch_scale * N_output'(r)), with r the last product's tangent.
template <class T>
void residual_jvp(const Equation& eq, const Layer<T>& layer, T* r, JvpJob<T>& job) {
  const int64_t d = eq.width;
  const Row<T> a = splat_row(static_cast<T>(eq.branch == Branch::linear ? 1 : eq.weight_scale));
  const Term<T> skipped(layer.skip_scale), branched(layer.branch_scale);
  const Affine<T> output_gain{layer.gain[kOutput], nullptr}, post_gain{layer.gain[kPost], nullptr};
  const bool post = active(eq, layer, kPost);
  MomentSum<T> sum;
  norm_derivative(
      eq.norm[kOutput], eq, job.tape.branch, job.tape.factors[kOutput], r,
      [&](int64_t, Row<T> x) DG_INLINE_LAMBDA { return x * a; },
      [&](int64_t k, int chain, Row<T> x) DG_INLINE_LAMBDA {
        T* t = job.tangent + k * kLanes<T>;
        const Row<T> y = branched(output_gain(k, x)) + skipped(load_row(t));
        if (!post) sum.add(chain, y);
        store_row(post ? r + k * kLanes<T> : t, y);
      },
      [&]() DG_INLINE_LAMBDA { sum.flush(); });
  if (post)
    norm_derivative(
        eq.norm[kPost], eq, job.tape.sum, job.tape.factors[kPost], r,
        [](int64_t, Row<T> x) DG_INLINE_LAMBDA { return x; },
        [&](int64_t k, int chain, Row<T> x) DG_INLINE_LAMBDA {
          const Row<T> y = post_gain(k, x);
          sum.add(chain, y);
          store_row(job.tangent + k * kLanes<T>, y);
        },
        [&]() DG_INLINE_LAMBDA { sum.flush(); });
  pool_of(sum, job.tangent, d, job.examples, &job.pool);
}

template <class T>
void jvp_layer(const Equation& eq, const Layer<T>& layer, JvpJob<T>* jobs, int64_t count, T* memory, const Stop& stop) {
  const bool small_batch = is_small_batch(jobs, count);
  const int64_t d = eq.width, m = eq.hidden, chunk = small_batch ? small_batch_chunk(eq) : chunk_size<T>(eq);
  const T scale = static_cast<T>(eq.weight_scale);
  Scratch<T> scratch{memory};
  const T* input[kMaxJobs];
  T* r[kMaxJobs];
  const bool pre = active(eq, layer, kPre);
  for (int64_t g = 0; g < count; ++g) {
    JvpJob<T>& job = jobs[g];
    input[g] = job.tangent;
    if (pre) {
      T* u = scratch.take_group(d);
      const Affine<T> gain{layer.gain[kPre], nullptr};
      norm_derivative(
          eq.norm[kPre], eq, job.state, job.tape.factors[kPre], job.tangent,
          [](int64_t, Row<T> x) DG_INLINE_LAMBDA { return x; },
          [&](int64_t k, int, Row<T> x) DG_INLINE_LAMBDA { store_row(u + k * kLanes<T>, gain(k, x)); },
          []() DG_INLINE_LAMBDA {});
      input[g] = u;
    }
    r[g] = scratch.take_group(d);
    if (m == 0) set_zero(r[g], d);
  }
  T* hidden = scratch.take_group(chunk);
  T* up_path = scratch.take_group(chunk);
  T* packed[3];
  take_columns(eq, chunk, small_batch, scratch, packed);
  for (int64_t j0 = 0; j0 < m; j0 += chunk) {
    const int64_t n = smaller(chunk, m - j0);
    const ChunkColumns<T> columns(eq, layer, j0, n, small_batch, packed);
    Prefetch prefetch = fetch_next(eq, layer, j0, chunk, count);
    for (int64_t g = 0; g < count; ++g) {
      if (stop()) return;
      const Tape<T>& tape = jobs[g].tape;
      const int examples = jobs[g].examples;
      const int64_t at = j0 * kLanes<T>;
      const uint16_t* positive = tape.positive ? tape.positive + j0 : nullptr;
      const T* derivative = tape.derivative ? tape.derivative + at : nullptr;
      T* z = eq.branch == Branch::linear ? r[g] + at : hidden;
      if (eq.branch == Branch::gated) {
        columns.gate.multiply(input[g], examples, z, false, prefetch);
        apply_derivative(eq, z, n, scale, positive, derivative);
        columns.up.multiply(input[g], examples, up_path, false, prefetch);
        apply_derivative<T>(eq, up_path, n, scale, nullptr, tape.gate_value + at);
        for (int64_t j = 0; j < n; ++j)
          store_row(z + j * kLanes<T>, load_row(z + j * kLanes<T>) + load_row(up_path + j * kLanes<T>));
      } else {
        columns.up.multiply(input[g], examples, z, false, prefetch);
        apply_derivative(eq, z, n, scale, positive, derivative);
      }
      if (eq.branch != Branch::linear) columns.down.multiply(z, examples, r[g], j0 > 0, prefetch);
    }
  }
  for (int64_t g = 0; g < count; ++g) residual_jvp(eq, layer, r[g], jobs[g]);
}

}  // namespace
