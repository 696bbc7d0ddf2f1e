// Calls of kernels: without the GIL, on a chosen instruction set, until Ctrl-C.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "common/resources.hpp"

namespace depthgauge {

namespace py = pybind11;

// Takes Python's lock for a thread that gave it up.  A daemon thread no longer gets it once the interpreter ends:
// Python before 3.14 ends the thread then, and glibc unwinds its frames, which would free Python's objects without the
// lock.  It stays here until the process is gone, as it does in later versions.
inline void take_lock(PyThreadState* thread) {
  struct Stay {
    bool unwinding = true;
    ~Stay() {
      while (unwinding) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  } stay;
  PyEval_RestoreThread(thread);
  stay.unwinding = false;
}

// Looks for Ctrl-C every 50 ms at most, in the thread that made the call and gave up the lock, and tells the others.
class Interrupt {
 public:
  explicit Interrupt(PyThreadState* thread) : thread_(thread) {}
  Stop stop() {
    return {[](void* self) { return static_cast<Interrupt*>(self)->ask(); }, this};
  }
  void raise_if_stopped() const {
    if (stopped_.load()) throw py::error_already_set();
  }

 private:
  bool ask() {
    if (stopped_.load(std::memory_order_relaxed)) return true;
    if (std::this_thread::get_id() != caller_) return false;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(50)) return false;
    last_ = now;
    take_lock(thread_);
    const bool stop = PyErr_CheckSignals() != 0;
    PyEval_SaveThread();
    stopped_.store(stop);
    return stop;
  }

  PyThreadState* const thread_;
  const std::thread::id caller_ = std::this_thread::get_id();
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::atomic<bool> stopped_{false};
};

template <class Run>
void run_released(const std::string& target, int threads, Run run) {
  if (threads < 1) throw std::invalid_argument("threads must be at least 1");
  const Target chosen = choose_target(target);
  PyThreadState* const thread = PyEval_SaveThread();
  Interrupt interrupt(thread);
  try {
    run(Resources{chosen, threads, interrupt.stop()});
  } catch (...) {
    take_lock(thread);
    throw;
  }
  take_lock(thread);
  interrupt.raise_if_stopped();
}

}  // namespace depthgauge
