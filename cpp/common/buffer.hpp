// Workspace memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace depthgauge {

// Aligned memory that is not cleared.  Large blocks ask for large pages: kernels sweep through megabytes of it, and
// with small pages the address translation would cost as much as the arithmetic.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t count) {
    const size_t bytes = sizeof(T) * static_cast<size_t>(count > 0 ? count : 1);
    alignment_ = std::align_val_t{bytes >= kLargePage ? kLargePage : 64};
    data_ = static_cast<T*>(::operator new(bytes, alignment_));
#if defined(MADV_HUGEPAGE)
    if (bytes >= kLargePage) madvise(data_, bytes, MADV_HUGEPAGE);
#endif
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { ::operator delete(static_cast<void*>(data_), alignment_); }
  T* get() const { return data_; }

 private:
  static constexpr size_t kLargePage = size_t{2} << 20;
  T* data_;
  std::align_val_t alignment_;
};

}  // namespace depthgauge
