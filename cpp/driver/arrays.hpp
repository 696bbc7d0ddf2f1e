// Memory that shows when it is overrun or left unwritten, and rows of examples in many layouts.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "driver/check.hpp"
#include "stack/propagation.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define DG_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DG_ADDRESS_SANITIZER 1
#endif
#endif

namespace depthgauge::driver {

// The address sanitizer sees a read or write by one element beyond an exactly sized allocation.  Elsewhere known
// bytes follow every array, so that at least writes are seen.
#if defined(DG_ADDRESS_SANITIZER)
inline constexpr int64_t kGuardBytes = 0;
#else
inline constexpr int64_t kGuardBytes = 128;
#endif
inline constexpr int kGuard = 0xa5;
// Fresh memory: no kernel computes this NaN or this count, but it comes through where one reads what it should not.
inline constexpr int kUnwritten = 0xff;

template <class T, size_t Alignment = alignof(T)>
class Array {
 public:
  Array() = default;
  explicit Array(int64_t count) : count_(count), data_(allocate(count)) {
    std::memset(static_cast<void*>(data_), kUnwritten, bytes());
    std::memset(end(), kGuard, kGuardBytes);
  }
  Array(Array&& other) noexcept : count_(std::exchange(other.count_, 0)), data_(std::exchange(other.data_, nullptr)) {}
  Array& operator=(Array&& other) noexcept {
    std::swap(count_, other.count_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Array() {
    if (!data_) return;
    const char* guard = end();
    check(std::all_of(guard, guard + kGuardBytes, [](char c) { return c == static_cast<char>(kGuard); }),
          "the bytes behind an array stay as they are");
    ::operator delete(static_cast<void*>(data_), kAlignment);
  }

  T* data() const { return data_; }
  int64_t size() const { return count_; }
  size_t bytes() const { return sizeof(T) * static_cast<size_t>(count_); }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  // No more than the type needs, or any allocator gives.
  static constexpr std::align_val_t kAlignment{std::max<size_t>(Alignment, alignof(std::max_align_t))};
  static T* allocate(int64_t count) {
    return static_cast<T*>(::operator new(sizeof(T) * static_cast<size_t>(count) + kGuardBytes, kAlignment));
  }
  char* end() const { return reinterpret_cast<char*>(data_) + bytes(); }

  int64_t count_ = 0;
  T* data_ = nullptr;
};

// The bytes of a result, for comparisons.
struct Bytes {
  const char* name;
  const char* data;
  size_t size;
  size_t element;
};

template <class T, size_t A>
Bytes bytes_of(const char* name, const Array<T, A>& array) {
  return {name, reinterpret_cast<const char*>(array.data()), array.bytes(), sizeof(T)};
}

void check_same(const std::vector<Bytes>& a, const std::vector<Bytes>& b, const char* property);
void check_written(const std::vector<Bytes>& arrays);

enum class Layout { contiguous, reversed, examples_inside, misaligned, repeated };
inline constexpr int kLayouts = 5;

// Rows of examples (i, j, b, k) in one of the layouts; `repeated` has one set of rows for every i.
template <class T>
class RowArray {
 public:
  RowArray(std::array<int64_t, 4> shape, Layout layout, Random& random) : shape_(shape) {
    constexpr auto size = static_cast<int64_t>(sizeof(T));
    const auto [n0, n1, n2, n3] = shape;
    const int64_t copies = layout == Layout::repeated ? std::min<int64_t>(n0, 1) : n0;
    const int64_t shift = layout == Layout::misaligned ? 1 : 0;
    memory_ = Array<char>(copies * n1 * n2 * n3 * size + shift);
    rows_.data = memory_.data() + shift;
    int64_t strides[4] = {n1 * n2 * n3, n2 * n3, n3, 1};
    if (layout == Layout::repeated) strides[0] = 0;
    if (layout == Layout::examples_inside) {
      strides[2] = 1;
      strides[3] = n2;
    }
    for (int axis = 0; axis < 4; ++axis) {
      rows_.strides[axis] = strides[axis] * size;
      if (layout != Layout::reversed || memory_.size() == 0) continue;
      rows_.data += (shape[static_cast<size_t>(axis)] - 1) * rows_.strides[axis];
      rows_.strides[axis] = -rows_.strides[axis];
    }
    each([&](int64_t i, int64_t j, int64_t b, int64_t k) { set(i, j, b, k, static_cast<T>(random.centered())); });
  }

  // From example `first` on.
  stack::Rows<T> from(int64_t first) const {
    stack::Rows<T> rows = rows_;
    rows.data += first * rows.strides[2];
    return rows;
  }

  void set(int64_t i, int64_t j, int64_t b, int64_t k, T value) {
    const int64_t* s = rows_.strides;
    const int64_t at = rows_.data - memory_.data() + i * s[0] + j * s[1] + b * s[2] + k * s[3];
    std::memcpy(memory_.data() + at, &value, sizeof value);
  }

  // Overwrites feature k of one example, wherever that example appears.
  void set_everywhere(int64_t b, int64_t k, T value) {
    for (int64_t i = 0; i < shape_[0]; ++i)
      for (int64_t j = 0; j < shape_[1]; ++j) set(i, j, b, k, value);
  }

  Bytes bytes(const char* name) const { return bytes_of(name, memory_); }

 private:
  template <class Body>
  void each(Body body) const {
    for (int64_t i = 0; i < shape_[0]; ++i)
      for (int64_t j = 0; j < shape_[1]; ++j)
        for (int64_t b = 0; b < shape_[2]; ++b)
          for (int64_t k = 0; k < shape_[3]; ++k) body(i, j, b, k);
  }

  std::array<int64_t, 4> shape_;
  Array<char> memory_;
  stack::Rows<T> rows_{};
};

}  // namespace depthgauge::driver
