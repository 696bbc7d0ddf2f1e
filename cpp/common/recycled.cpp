#include "common/recycled.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace depthgauge {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;
// What is kept at most.  Beyond it memory goes back to the system at once.
constexpr size_t kMostKept = size_t{256} << 20;

struct Block {
  void* memory;
  size_t bytes;
};

// A large tape is mostly of the last one's size: calls in a loop ask for the same again.  New memory costs a fault and a
// clearing a page, which is up to a tenth of a forward pass.
class Store {
 public:
  void* take(size_t bytes) {
    const size_t whole = (bytes + kLargePage - 1) / kLargePage * kLargePage;
    const std::lock_guard lock(mutex_);
    used_.reserve(used_.size() + 1);
    const auto fits = [&](const Block& b) { return b.bytes >= whole && b.bytes - whole <= whole / 8; };
    const auto kept = std::find_if(kept_.begin(), kept_.end(), fits);
    Block block{nullptr, whole};
    if (kept != kept_.end()) {
      block = *kept;
      kept_.erase(kept);
      size_ -= block.bytes;
    } else {
      block.memory = ::operator new(whole, std::align_val_t{kLargePage});
#if defined(MADV_HUGEPAGE)
      madvise(block.memory, whole, MADV_HUGEPAGE);
#endif
    }
    used_.push_back(block);
    return block.memory;
  }

  void give_back(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto at = std::find_if(used_.begin(), used_.end(), [&](const Block& b) { return b.memory == memory; });
    const Block block = *at;
    used_.erase(at);
#if defined(MADV_FREE)
    // The system may still take the pages whenever it is short of memory.
    if (block.bytes <= kMostKept && madvise(memory, block.bytes, MADV_FREE) == 0) {
      while (size_ + block.bytes > kMostKept) {
        release(kept_.front());
        kept_.erase(kept_.begin());
      }
      try {
        kept_.push_back(block);
        size_ += block.bytes;
        return;
      } catch (const std::bad_alloc&) {
      }
    }
#endif
    ::operator delete(memory, std::align_val_t{kLargePage});
  }

 private:
  void release(const Block& block) {
    size_ -= block.bytes;
    ::operator delete(block.memory, std::align_val_t{kLargePage});
  }

  std::mutex mutex_;
  std::vector<Block> used_, kept_;
  size_t size_ = 0;
};

// Never destroyed: tapes may outlive every destructor.
Store& store() {
  static Store* const the = new Store;
  return *the;
}

}  // namespace

void* take_memory(size_t bytes) { return store().take(bytes); }
void give_back_memory(void* memory) { store().give_back(memory); }

}  // namespace depthgauge
