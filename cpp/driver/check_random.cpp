// Random normals: published vectors, the formula in double at any number of a block, memory, threads and stops.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "driver/arrays.hpp"
#include "driver/checks.hpp"
#include "random/normals.hpp"

namespace depthgauge::driver {
namespace {

using Block = std::array<uint32_t, 4>;

// Philox4x32-10 as it is defined.
Block philox(Block c, uint64_t key) {
  auto low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, low += 0x9e3779b9, high += 0xbb67ae85) {
    const uint64_t p0 = uint64_t{0xd2511f53} * c[0], p1 = uint64_t{0xcd9e8d57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ low, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ high, static_cast<uint32_t>(p0)};
  }
  return c;
}

void published_vectors() {
  constexpr uint32_t kOnes = 0xffffffff;
  check(
      philox({0, 0, 0, 0}, 0) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8} &&
          philox({kOnes, kOnes, kOnes, kOnes}, ~uint64_t{0}) == Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd} &&
          philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822) ==
              Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
      "Philox makes the published vectors");
}

// Number `which` of a block.
double formula(const Block& w, int which, double) {
  const double u = std::ldexp(w[1], -32) + (std::ldexp(w[0], -64) + 0x1p-65);
  const double turn = (std::ldexp(w[3] & 0x7fffffff, -31) - 0.5) + std::ldexp(w[2], -63);
  const double angle = turn * 1.5707963267948966, cosine = std::cos(angle) * (w[2] & 1 ? -1 : 1);
  return std::sqrt(-2 * std::log(u)) * ((which == 1) != (w[3] >> 31 != 0) ? std::sin(angle) : cosine);
}

double formula(const Block& w, int which, float) {
  const uint32_t a = w[static_cast<size_t>(which / 2 * 2 + 1)];
  const auto u = static_cast<float>((w[static_cast<size_t>(which / 2 * 2)] + 0.5) * 0x1p-32);
  const double angle = static_cast<int32_t>(a << 1 | 1) * 0x1p-32 * 1.5707963267948966;
  const double cosine = std::cos(angle) * (a & 1 ? -1 : 1);
  const bool sine = (which % 2 == 1) != (a >> 31 != 0);
  return std::sqrt(-2 * std::log(static_cast<double>(u))) * (sine ? std::sin(angle) : cosine);
}

// The numbers of a block go over into its high half on the way.
template <class T>
void against_the_formula(Target target, int64_t line, int64_t count) {
  constexpr int64_t kLanes = random::kBlocksPerLine<T>, kLine = random::kLine<T>;
  const random::Sequence sequence{0xfedcba9876543210, 0xfffffffe, 3};
  const Array<T> numbers(count);
  random::kernels<T>(target).normals(sequence, line, count, T(1), numbers.data());
  bool right = true;
  for (int64_t n = 0; n < count; ++n) {
    const auto block = static_cast<uint64_t>((line + n / kLine) * kLanes + n % kLanes);
    const Block words =
        philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), sequence.layer, sequence.matrix},
               sequence.seed);
    const double want = formula(words, static_cast<int>(n % kLine / kLanes), T(0));
    const double tolerance = 4 * static_cast<double>(std::numeric_limits<T>::epsilon());
    right &= std::abs(static_cast<double>(numbers[n]) - want) <= tolerance * std::abs(want);
  }
  check(right, "normals follow the formula");
}

template <class T>
void threads_and_parts(Target target, int64_t seeds, int64_t layers, int64_t count) {
  const Array<uint64_t> keys(seeds);
  for (int64_t i = 0; i < seeds; ++i) keys.data()[i] = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15;
  const auto fill = [&](const Array<T>& out, int threads, const Stop& stop) {
    random::normals<T>({keys.data(), seeds, 5, layers, count, 2, T(0.25), out.data()}, {target, threads, stop});
  };
  const int64_t size = seeds * layers * count;
  const Array<T> alone(size);
  fill(alone, 1, never());
  check(std::all_of(alone.data(), alone.data() + size, [](T x) { return std::abs(x) <= T(2.4); }),
        "every number is written");
  if (target != Target::baseline) {
    const Array<T> baseline(size);
    random::normals<T>({keys.data(), seeds, 5, layers, count, 2, T(0.25), baseline.data()},
                       {Target::baseline, 1, never()});
    check(std::memcmp(alone.data(), baseline.data(), alone.bytes()) == 0,
          "normals are the same on every instruction set");
  }
  for (const int threads : {2, 7}) {
    const Array<T> threaded(size);
    fill(threaded, threads, never());
    check(std::memcmp(alone.data(), threaded.data(), alone.bytes()) == 0, "normals are the same on any threads");
  }
  for (int after = 0; after < 6; ++after) {
    std::atomic<int> left{after};
    const Array<T> stopped(size);
    const Stop stop{[](void* self) { return static_cast<std::atomic<int>*>(self)->fetch_sub(1) <= 0; }, &left};
    fill(stopped, 1 + after % 3, stop);
  }
}

}  // namespace

template <class T>
void check_random(Target target) {
  set_context(std::string("random normals, ") + (sizeof(T) == 4 ? "float, " : "double, ") + name(target));
  if (target == Target::baseline) published_vectors();
  constexpr int64_t kHighHalf = (int64_t{1} << 32) / random::kBlocksPerLine<T>;
  for (const int64_t line : {int64_t{0}, kHighHalf - 4, 3 * kHighHalf + 8}) against_the_formula<T>(target, line, 700);
  for (const int64_t count : {0, 1, 15, 64, 65, 8192, 33001}) threads_and_parts<T>(target, 2, 3, count);
  threads_and_parts<T>(target, 0, 3, 5);
  threads_and_parts<T>(target, 3, 0, 5);
  threads_and_parts<T>(target, 3, 700, 35);
}

template void check_random<float>(Target);
template void check_random<double>(Target);

}  // namespace depthgauge::driver
