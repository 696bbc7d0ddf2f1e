#include "common/recycled.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace depthgauge {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;
// What is kept at most.  Beyond it memory goes back to the system at once.
constexpr size_t kMostKept = size_t{256} << 20;

// A large tape is mostly of the last one's size: calls in a loop ask for the same again.  New memory costs a fault and a
// clearing a page, which is up to a tenth of a forward pass.
class Store {
 public:
  Recycled* take(size_t bytes) {
    const size_t whole = (bytes + kLargePage - 1) / kLargePage * kLargePage;
    const std::lock_guard lock(mutex_);
    const auto fits = [&](const auto& m) { return m->bytes >= whole && m->bytes - whole <= whole / 8; };
    const auto found = std::find_if(kept_.begin(), kept_.end(), fits);
    if (found == kept_.end()) return new Recycled{Buffer<unsigned char>(static_cast<int64_t>(whole)), whole};
    Recycled* const memory = found->release();
    kept_.erase(found);
    size_ -= memory->bytes;
    return memory;
  }

  void give_back(std::unique_ptr<Recycled> memory) {
#if defined(MADV_FREE)
    const std::lock_guard lock(mutex_);
    const size_t bytes = memory->bytes;
    // The system may still take the pages whenever it is short of memory.
    if (bytes > kMostKept || madvise(memory->buffer.get(), bytes, MADV_FREE) != 0) return;
    while (size_ + bytes > kMostKept) {
      size_ -= kept_.front()->bytes;
      kept_.erase(kept_.begin());
    }
    try {
      kept_.push_back(std::move(memory));
      size_ += bytes;
    } catch (const std::bad_alloc&) {
      // It is not kept.
    }
#endif
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Recycled>> kept_;
  size_t size_ = 0;
};

// Never destroyed: tapes may outlive every destructor.
Store& store() {
  static Store* const the = new Store;
  return *the;
}

}  // namespace

Recycled* take_memory(size_t bytes) { return store().take(bytes); }
void give_back_memory(Recycled* memory) { store().give_back(std::unique_ptr<Recycled>(memory)); }

}  // namespace depthgauge
