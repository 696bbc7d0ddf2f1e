// What weight gradients keep of the groups of a layer.
#pragma once

#include <vector>

#include "common/buffer.hpp"
#include "stack/propagation.hpp"

namespace depthgauge::stack {

// What the weight gradients of one layer need of every group, kept until all groups have gone back through the block
// and the outer products over them can be taken.
template <class T>
class GradientStore {
 public:
  GradientStore(const Stack<T>& stack, int64_t units, bool input, bool activation, bool branch)
      : d_(stack.equation.width),
        m_(stack.equation.hidden),
        gated_(stack.equation.branch == Branch::gated),
        linear_(stack.equation.branch == Branch::linear),
        units_(units),
        input_(input ? units * d_ * kGroup<T> : 0),
        activation_(activation ? units * m_ * kGroup<T> : 0),
        branch_(branch ? units * d_ * kGroup<T> : 0),
        up_(panels(m_) * units * kGroup<T> * kGroup<T>),
        gate_(gated_ ? panels(m_) * units * kGroup<T> * kGroup<T> : 0),
        down_(linear_ ? 0 : panels(d_) * units * kGroup<T> * kGroup<T>),
        sums_(units * sums_size(stack)),
        jobs_(static_cast<size_t>(units)) {
    double* sums = sums_.get();
    for (int64_t i = 0; i < units; ++i) {
      GradientJob<T>& job = jobs_[static_cast<size_t>(i)];
      job = {};
      if (input) job.input = input_.get() + i * d_ * kGroup<T>;
      if (activation) job.activation = activation_.get() + i * m_ * kGroup<T>;
      if (branch) job.normalized_branch = branch_.get() + i * d_ * kGroup<T>;
      job.panel_stride = panel_stride();
      job.up_panel = up_.get() + i * kGroup<T> * kGroup<T>;
      job.gate_panel = gate_.get() + (gated_ ? i * kGroup<T> * kGroup<T> : 0);
      job.down_panel = down_.get() + (linear_ ? 0 : i * kGroup<T> * kGroup<T>);
      for (int field = kBUp; field < kFields; ++field)
        if (stack.fields[field].data) {
          sum(job.sums, field) = sums;
          sums += stack.field_size(field);
        }
    }
  }

  GradientJob<T>* job(int64_t unit) { return &jobs_[static_cast<size_t>(unit)]; }
  int64_t panel_stride() const { return units_ * kGroup<T> * kGroup<T>; }

  // The panels of one matrix's right factor, at the first of an owner's units.
  const T* right(int field, int64_t first) const {
    const Buffer<T>& from = field == kDown ? down_ : field == kGate ? gate_ : up_;
    return from.get() + first * kGroup<T> * kGroup<T>;
  }

  // The left factor of one matrix, here or where it was kept.
  const T* left(int field, int64_t unit, const T* state, const T* activation) const {
    const GradientJob<T>& made = jobs_[static_cast<size_t>(unit)];
    if (field == kDown) return made.activation ? made.activation : activation;
    return made.input ? made.input : state;
  }

  static double*& sum(VectorSums& sums, int field) {
    switch (field) {
      case kBUp: return sums.b_up;
      case kBDown: return sums.b_down;
      case kBGate: return sums.b_gate;
      default: return field < kShift ? sums.gain[field - kGain] : sums.shift[field - kShift];
    }
  }

 private:
  static int64_t panels(int64_t n) { return (n + kGroup<T> - 1) / kGroup<T>; }
  static int64_t sums_size(const Stack<T>& stack) {
    int64_t size = 0;
    for (int field = kBUp; field < kFields; ++field)
      if (stack.fields[field].data) size += stack.field_size(field);
    return size;
  }

  const int64_t d_, m_;
  const bool gated_, linear_;
  const int64_t units_;
  Buffer<T> input_, activation_, branch_, up_, gate_, down_;
  Buffer<double> sums_;
  std::vector<GradientJob<T>> jobs_;
};

}  // namespace depthgauge::stack
