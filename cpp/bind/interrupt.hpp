#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "stack/kernels.hpp"

namespace depthgauge {

// Looks for Ctrl-C a few times a second, in the thread that made the call, and tells the others.
class Interrupt {
 public:
  stack::Stop stop() {
    return {[](void* self) { return static_cast<Interrupt*>(self)->ask(); }, this};
  }
  void raise_if_stopped() const {
    if (stopped_.load()) throw pybind11::error_already_set();
  }

 private:
  bool ask() {
    if (stopped_.load(std::memory_order_relaxed)) return true;
    if (std::this_thread::get_id() != caller_) return false;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(50)) return false;
    last_ = now;
    pybind11::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() == 0) return false;
    stopped_.store(true);
    return true;
  }

  const std::thread::id caller_ = std::this_thread::get_id();
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::atomic<bool> stopped_{false};
};

}  // namespace depthgauge
