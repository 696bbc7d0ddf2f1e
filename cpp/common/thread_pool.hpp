// One small pool of threads for independent pieces of work.
#pragma once

#include <cstdint>

namespace depthgauge {

// Runs task(index, worker) for each index below `count` on at most `threads` threads, the caller being worker 0, and
// returns when all are done.  What a task throws stops the rest and is thrown again here.  The pool serves one caller at a time; a call that finds it
// taken, by another thread or because it is nested, runs on its own thread alone.
void run_tasks(int threads, int64_t count, void (*task)(void*, int64_t index, int worker), void* context);

// A moment of waiting for another thread, the `spin`th in a row.
void relax(int spin);

template <class Task>
void parallel(int threads, int64_t count, Task&& task) {
  run_tasks(
      threads, count, [](void* t, int64_t index, int worker) { (*static_cast<Task*>(t))(index, worker); }, &task);
}

}  // namespace depthgauge
