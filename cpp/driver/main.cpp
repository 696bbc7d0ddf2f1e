// Exercises the kernels without Python, for sanitizers and emulators.  Prints one line; the status is 0 when all
// checks hold.  With --quick it takes an eighth of the cases, and forks no child: QEMU does not follow the threads that
// one starts.
#include <cstdio>
#include <cstring>

#include "driver/checks.hpp"

namespace depthgauge::driver {
namespace {

template <class T>
void check_precision(Target target, uint64_t salt, int stride, bool quick) {
  for (const Case& c : covering_cases(salt, stride)) check_numbers<T>(c, target);
  for (const Case& c : special_cases()) check_numbers<T>(c, target);
  for (const Case& c : covering_cases(salt, 8 * stride)) check_jacobians<T>(c, target);
  for (const Case& c : special_jacobian_cases()) check_jacobians<T>(c, target);
  check_spectra<T>(target, quick);
  check_random<T>(target);
}

template <class T>
void check_calls_of(Target target, bool quick) {
  for (const Case& c : concurrent_cases()) {
    check_calls<T>(c, target, !quick);
    if (quick) break;
  }
}

void run(bool quick) {
  check_pool();
  check_work_queue();
  std::string names;
  const std::vector<Target> targets = supported_targets();
  // Where there are several instruction sets, two of them share the cases.
  const int stride = quick ? 8 : targets.size() > 1 ? 2 : 1;
  // Threads are the same on all of them; calls use the last by default.
  check_calls_of<float>(targets.back(), quick);
  check_calls_of<double>(targets.back(), quick);
  uint64_t salt = 1;
  for (const Target target : targets) {
    check_graded<float>(target);
    check_graded<double>(target);
    check_precision<float>(target, salt++, stride, quick);
    check_precision<double>(target, salt++, stride, quick);
    names += (names.empty() ? "" : ", ") + std::string(name(target));
  }
  std::printf("driver: %lld checks on targets %s: ok\n", static_cast<long long>(checks_done()), names.c_str());
}

}  // namespace
}  // namespace depthgauge::driver

int main(int count, char** arguments) {
  const bool quick = count == 2 && std::strcmp(arguments[1], "--quick") == 0;
  if (count > 1 && !quick) {
    std::fprintf(stderr, "usage: %s [--quick]\n", arguments[0]);
    return 2;
  }
  depthgauge::driver::run(quick);
  return 0;
}
