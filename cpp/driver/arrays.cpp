#include "driver/arrays.hpp"

namespace depthgauge::driver {

void check_same(const std::vector<Bytes>& a, const std::vector<Bytes>& b, const char* property) {
  for (size_t i = 0; i < a.size(); ++i)
    check(a[i].size == b[i].size && (a[i].size == 0 || std::memcmp(a[i].data, b[i].data, a[i].size) == 0), property,
          a[i].name);
}

void check_written(const std::vector<Bytes>& arrays) {
  for (const Bytes& a : arrays) {
    bool written = true;
    for (size_t at = 0; at < a.size; at += a.element)
      written &=
          std::any_of(a.data + at, a.data + at + a.element, [](char c) { return c != static_cast<char>(kUnwritten); });
    check(written, "results are written whole, from what was given", a.name);
  }
}

}  // namespace depthgauge::driver
