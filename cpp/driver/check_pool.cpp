#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/thread_pool.hpp"
#include "driver/check.hpp"
#include "driver/checks.hpp"

namespace depthgauge::driver {
namespace {

// What a task throws: its owner can tell when it is gone.
struct Failure : std::runtime_error {
  Failure(const std::string& what, std::shared_ptr<int> t) : std::runtime_error(what), token(std::move(t)) {}
  std::shared_ptr<int> token;
};

// Every index runs once, and a worker does one thing at a time: neither count is atomic.
void each_once(int threads, int64_t count) {
  std::vector<int> runs(static_cast<size_t>(count));
  std::vector<int64_t> of_worker(static_cast<size_t>(threads));
  bool known = true;
  parallel(threads, count, [&](int64_t i, int worker) {
    if (worker < 0 || worker >= threads) {
      known = false;
      return;
    }
    ++runs[static_cast<size_t>(i)];
    ++of_worker[static_cast<size_t>(worker)];
  });
  check(known, "workers are numbered from 0 up to the threads");
  bool once = true;
  for (const int n : runs) once &= n == 1;
  check(once, "every task runs once");
  int64_t total = 0;
  for (const int64_t n : of_worker) total += n;
  check(total == count, "every task runs on some worker");
}

// Throws from the tasks that `fails` picks; true if the caller got one of these, and it is gone afterwards.
template <class Fails>
bool failure_arrives(int threads, int64_t count, Fails fails) {
  const auto token = std::make_shared<int>(0);
  bool caught = false;
  try {
    parallel(threads, count, [&](int64_t i, int) {
      if (fails(i)) throw Failure("task " + std::to_string(i), token);
    });
  } catch (const Failure& failure) {
    const std::string what = failure.what();
    caught = what.rfind("task ", 0) == 0 && fails(std::stoll(what.substr(5)));
  }
  check(token.use_count() == 1, "nothing holds what a task threw once the caller is done with it");
  return caught;
}

void failures(int threads) {
  for (const int64_t count : {int64_t{1}, int64_t{2}, int64_t{500}}) {
    check(failure_arrives(threads, count, [](int64_t i) { return i == 0; }), "what the first task throws arrives");
    check(failure_arrives(threads, count, [&](int64_t i) { return i == count - 1; }),
          "what the last task throws arrives");
    check(failure_arrives(threads, count, [](int64_t) { return true; }), "what any task throws arrives");
    check(!failure_arrives(threads, count, [](int64_t) { return false; }), "nothing arrives when nothing is thrown");
    each_once(threads, count);
  }
}

// A task that makes a call itself, and does all of it.
void nested(int threads) {
  std::vector<int64_t> inner(20);
  std::vector<char> own(inner.size());
  parallel(threads, static_cast<int64_t>(inner.size()), [&](int64_t i, int) {
    const auto self = std::this_thread::get_id();
    bool here = true;
    parallel(threads, 30, [&](int64_t, int worker) {
      here &= worker == 0 && std::this_thread::get_id() == self;
      ++inner[static_cast<size_t>(i)];
    });
    own[static_cast<size_t>(i)] = here;
  });
  for (size_t i = 0; i < inner.size(); ++i) {
    check(inner[i] == 30, "a nested call does all its tasks");
    check(own[i] != 0, "a nested call runs on the thread that makes it");
  }
}

void callers_at_once() {
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([i] {
      set_context("the pool, caller " + std::to_string(i));
      for (int round = 0; round < 50; ++round) {
        each_once(1 + (i + round) % 4, 100);
        check(failure_arrives(3, 40, [](int64_t k) { return k == 20; }),
              "what a task throws arrives at its own caller");
      }
    });
  for (std::thread& caller : callers) caller.join();
}

}  // namespace

void check_pool() {
  for (const int threads : {1, 2, 3, 7}) {
    set_context("the pool with " + std::to_string(threads) + " threads");
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{6}, int64_t{7}, int64_t{8}, int64_t{1000}})
      each_once(threads, count);
    failures(threads);
    nested(threads);
  }
  callers_at_once();
}

}  // namespace depthgauge::driver
