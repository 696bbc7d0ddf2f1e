#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "driver/checks.hpp"
#include "driver/problem.hpp"

#if defined(__SANITIZE_THREAD__)
#define DG_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DG_THREAD_SANITIZER 1
#endif
#endif

// The thread sanitizer does not follow threads that a forked child starts.
#if (defined(__unix__) || defined(__APPLE__)) && !defined(DG_THREAD_SANITIZER)
#define DG_FORK 1
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace depthgauge::driver {
namespace {

// Every pass of one problem.
template <class T>
struct Passes {
  Passes(const Problem<T>& problem, const Resources& resources)
      : forwarded(problem, problem.all(), true, resources),
        reversed(problem, problem.all(), forwarded, WeightGradients::full, resources),
        brief(problem, problem.all(), forwarded, WeightGradients::rms, resources),
        tangented(problem, problem.all(), forwarded, resources) {}

  void check_equal(const Passes& other, const char* property) const {
    check_same(forwarded.results(), other.forwarded.results(), property);
    check_same(reversed.results(), other.reversed.results(), property);
    check_same(brief.results(), other.brief.results(), property);
    check_same(tangented.results(), other.tangented.results(), property);
  }

  ForwardRun<T> forwarded;
  VjpRun<T> reversed, brief;
  JvpRun<T> tangented;
};

// Stops when it has been asked a number of times, from any threads.
class Countdown {
 public:
  explicit Countdown(int64_t questions) : left_(questions) {}
  Stop stop() {
    return {[](void* self) { return static_cast<Countdown*>(self)->left_.fetch_sub(1) <= 0; }, this};
  }
  int64_t left() const { return left_.load(); }

 private:
  std::atomic<int64_t> left_;
};

template <class T>
void several_callers(const Problem<T>& problem, const Passes<T>& expected, Target target, const std::string& context) {
  constexpr int kCallers = 4, kRounds = 3;
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i)
    callers.emplace_back([&, i] {
      set_context(context + ", caller " + std::to_string(i));
      for (int round = 0; round < kRounds; ++round)
        Passes<T>(problem, {target, 1 + (i + round) % 4, never()})
            .check_equal(expected, "several callers at once get the same bits");
    });
  for (std::thread& caller : callers) caller.join();
}

template <class T>
void stopped_calls(const Problem<T>& problem, const Passes<T>& expected, Target target) {
  constexpr int64_t kMany = int64_t{1} << 40;
  constexpr int kStops = 12;
  Countdown unhurried(kMany);
  Passes<T>(problem, {target, 1, unhurried.stop()}).check_equal(expected, "asking whether to stop changes no bits");
  const int64_t questions = kMany - unhurried.left();
  check(questions > 0, "calls ask whether to stop");
  Random random(problem.options().seed + 6);
  for (int i = 0; i < kStops; ++i) {
    // What a stopped call leaves is unspecified, but it stays within its arrays.
    Countdown countdown(random.below(questions));
    Passes<T>(problem, {target, 1 + i % 4, countdown.stop()});
  }
  Passes<T>(problem, {target, 3, never()}).check_equal(expected, "calls after a stopped one are as before");
}

#if defined(DG_FORK)
template <class T>
void forked_child(const Problem<T>& problem, const Passes<T>& expected, Target target) {
  constexpr unsigned kSeconds = 60;
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSeconds);
    Passes<T>(problem, {target, 3, never()}).check_equal(expected, "a forked child gets the same bits");
    std::_Exit(0);
  }
  int status = -1;
  check(child > 0 && waitpid(child, &status, 0) == child, "a child can be forked");
  check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked child can call with several threads");
  Passes<T>(problem, {target, 3, never()}).check_equal(expected, "calls after a fork are as before");
}
#else
template <class T>
void forked_child(const Problem<T>&, const Passes<T>&, Target) {}
#endif

}  // namespace

template <class T>
void check_calls(const Case& c, Target target, bool fork) {
  const std::string context = describe(c, sizeof(T) == sizeof(float) ? "float" : "double", target);
  set_context(context);
  const Problem<T> problem(c);
  const Passes<T> expected(problem, {target, 1, never()});
  several_callers(problem, expected, target, context);
  stopped_calls(problem, expected, target);
  if (fork) forked_child(problem, expected, target);
}

template void check_calls<float>(const Case&, Target, bool);
template void check_calls<double>(const Case&, Target, bool);

}  // namespace depthgauge::driver
