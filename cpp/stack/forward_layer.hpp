// One block forward, over groups of examples that share its weights.
#pragma once

#include "stack/layer.hpp"

namespace {

using depthgauge::stack::ForwardJob;
using depthgauge::stack::kMaxJobs;

// The hidden units [j0, j0 + n) of one group: their values go to `z`.
template <class T, bool Record>
DG_INLINE void hidden_chunk(const Equation& eq, const Layer<T>& layer, const Columns<T>& up, const Columns<T>& gate,
                            const T* input, int examples, int64_t j0, int64_t n, T* z, T* up_path,
                            HiddenRecord<T>& record, Prefetch& prefetch) {
  const T* b_up = layer.b_up ? layer.b_up + j0 : nullptr;
  if (eq.branch == Branch::gated) {
    up.multiply(input, examples, up_path, false, prefetch);
    add_bias(up_path, n, static_cast<T>(eq.weight_scale), b_up);
    gate.multiply(input, examples, z, false, prefetch);
    activate<T, Record>(eq, z, n, layer.b_gate ? layer.b_gate + j0 : nullptr, up_path, record);
  } else {
    up.multiply(input, examples, z, false, prefetch);
    activate<T, Record>(eq, z, n, b_up, static_cast<const T*>(nullptr), record);
  }
}

// next = skip_scale * state + branch_scale * r, its moments, and those of r.  `r` holds the last product, or for a
// linear branch r itself.
template <class T>
void residual_plain(const Equation& eq, const Layer<T>& layer, T* r, ForwardJob<T>& job) {
  const bool linear = eq.branch == Branch::linear;
  const Vec<T> a = splat(static_cast<T>(linear ? 1 : eq.weight_scale));
  const T* bias = linear ? nullptr : layer.b_down;
  // A linear branch is a result already: scale 1 and no bias leave it as it is.
  const auto branch_row = [&](int64_t k) DG_INLINE_LAMBDA {
    const Row<T> b = affine_row(r, k, a, bias);
    return linear ? b : emit(b);
  };
  const Term<T> skipped(layer.skip_scale), branched(layer.branch_scale);
  MomentSum<T> next, branch;
  each_feature(
      eq.width,
      [&](int64_t k, int chain) DG_INLINE_LAMBDA {
        const Row<T> b = branch_row(k);
        branch.add(chain, b);
        const Row<T> y = branched(b) + skipped(load_row(job.state + k * kLanes<T>));
        next.add(chain, emit(y, job.next + k * kLanes<T>));
      },
      [&]() DG_INLINE_LAMBDA {
        branch.flush();
        next.flush();
      });
  // The branch is not stored; it is made again where its moments need a second look.
  Moments m;
  if (take_moments(branch, &m)) {
    for (int64_t k = 0; k < eq.width; ++k) store_row(r + k * kLanes<T>, branch_row(k));
    finish(branch, r, eq.width, &m);
  }
  job.branch_pool = pool(m, job.examples);
  finish(next, job.next, eq.width, job.moments);
}

// The same with norms at the output or after the sum.
template <class T>
void residual_normed(const Equation& eq, const Layer<T>& layer, T* r, ForwardJob<T>& job) {
  const int64_t d = eq.width;
  if (eq.branch != Branch::linear) add_bias(r, d, static_cast<T>(eq.weight_scale), layer.b_down);
  Moments m;
  if (active(eq, layer, kOutput)) {
    if (job.tape.branch) __builtin_memcpy(job.tape.branch, r, static_cast<size_t>(d) * kGroupBytes);
    group_moments(r, d, job.examples, &m, &job.branch_pool, nullptr);
    norm_at(eq, layer, kOutput, r, m, job.tape.factors[kOutput], r);
  }
  group_moments(r, d, job.examples, &m, &job.branch_pool, nullptr);
  const Term<T> skipped(layer.skip_scale), branched(layer.branch_scale);
  MomentSum<T> sum;
  each_feature(
      d,
      [&](int64_t k, int chain) DG_INLINE_LAMBDA {
        const Row<T> y = branched(load_row(r + k * kLanes<T>)) + skipped(load_row(job.state + k * kLanes<T>));
        sum.add(chain, emit(y, job.next + k * kLanes<T>));
      },
      [&]() DG_INLINE_LAMBDA { sum.flush(); });
  finish(sum, job.next, d, job.moments);
  if (active(eq, layer, kPost)) {
    if (job.tape.sum) __builtin_memcpy(job.tape.sum, job.next, static_cast<size_t>(d) * kGroupBytes);
    norm_at(eq, layer, kPost, job.next, *job.moments, job.tape.factors[kPost], job.next);
    group_moments(job.next, d, job.examples, job.moments, &job.next_pool, nullptr);
  }
}

template <class T>
void forward_layer(const Equation& eq, const Layer<T>& layer, ForwardJob<T>* jobs, int64_t count, T* memory,
                   const Stop& stop) {
  const bool small_batch = is_small_batch(jobs, count);
  const int64_t d = eq.width, m = eq.hidden, chunk = small_batch ? small_batch_chunk(eq) : chunk_size<T>(eq);
  Scratch<T> scratch{memory};
  const T* input[kMaxJobs];
  T* r[kMaxJobs];
  const bool pre = active(eq, layer, kPre);
  for (int64_t g = 0; g < count; ++g) {
    ForwardJob<T>& job = jobs[g];
    input[g] = job.state;
    if (pre) {
      T* u = scratch.take_group(d);
      norm_at(eq, layer, kPre, job.state, *job.moments, job.tape.factors[kPre], u);
      input[g] = u;
    }
    r[g] = scratch.take_group(d);
    if (m == 0) set_zero(r[g], d);
    job.live = job.saturated = 0;
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
      ForwardJob<T>& job = jobs[g];
      HiddenRecord<T> record;
      const int64_t at = j0 * kLanes<T>;
      if (job.tape.positive) record.positive = job.tape.positive + j0;
      if (job.tape.derivative) record.derivative = job.tape.derivative + at;
      if (job.tape.gate_value) record.gate_value = job.tape.gate_value + at;
      if (job.abs_derivative) record.abs_derivative = job.abs_derivative + at;
      record.unit_live = job.unit_live + j0;
      record.examples = (1u << job.examples) - 1u;
      T* const kept = job.tape.activation ? job.tape.activation + at : nullptr;
      T* z = eq.branch == Branch::linear ? r[g] + at : kept ? kept : hidden;
      prefetch.group(kept ? kept : record.derivative, n, steps_of(n, d));
      hidden_chunk<T, true>(eq, layer, columns.up, columns.gate, input[g], job.examples, j0, n, z, up_path, record,
                            prefetch);
      job.live += record.live;
      job.saturated += record.saturated;
      if (j0 + n == m) prefetch.group(job.next, d, steps_of(d, n));
      if (eq.branch != Branch::linear) columns.down.multiply(z, job.examples, r[g], j0 > 0, prefetch);
    }
  }
  const bool plain = !active(eq, layer, kOutput) && !active(eq, layer, kPost);
  for (int64_t g = 0; g < count; ++g) {
    ForwardJob<T>& job = jobs[g];
    if (plain)
      residual_plain(eq, layer, r[g], job);
    else
      residual_normed(eq, layer, r[g], job);
    job.next_pool = pool(*job.moments, job.examples);
    const auto next = [&](int64_t k) DG_INLINE_LAMBDA { return load_row(job.next + k * kLanes<T>); };
    totals_of<T>(d, job.examples, next, job.totals);
  }
}

}  // namespace
