// One small pool of threads for independent tasks.
#pragma once

#include <cstdint>

namespace depthgauge {

// Runs task(index, worker) for each index below `count` on at most `threads` threads, the caller being worker 0, and
// returns when all are done.  What a task throws stops the rest and is thrown again here.  The pool serves one caller
// at a time; a call that finds it taken, by another thread or because it is nested, runs on its own thread alone.
void run_tasks(int threads, int64_t count, void (*task)(void*, int64_t index, int worker), void* context);

// A moment of waiting for another thread, the `spin`th in a row: now and then it yields, so that spinning costs nothing
// where there are more threads than CPUs.
void relax(int spin);

// The parts of a call, and often the calls, follow each other within a fraction of a millisecond, where waking a
// sleeping thread can take as long; so a thread looks for work this often before it sleeps.
inline constexpr int kSpins = 10000;

template <class Task>
void parallel(int threads, int64_t count, Task&& task) {
  run_tasks(threads, count, [](void* t, int64_t index, int worker) { (*static_cast<Task*>(t))(index, worker); }, &task);
}

}  // namespace depthgauge
