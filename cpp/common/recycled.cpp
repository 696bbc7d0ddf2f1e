#include "common/recycled.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <list>
#include <mutex>
#include <new>

#include "common/buffer.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace depthgauge {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;
// What is kept at most.  Beyond it memory goes back to the system at once.
constexpr size_t kMostKept = size_t{256} << 20;

struct Block {
  explicit Block(size_t size) : buffer(static_cast<int64_t>(size)), bytes(size) {}
  Buffer<unsigned char> buffer;
  size_t bytes;
};

// A large array is mostly of an earlier one's size: calls in a loop ask for the same again.  New memory costs a fault
// and a clearing a page, which is up to a tenth of a forward pass, and a quarter of one that makes weight gradients.
class Store {
 public:
  void* take(size_t bytes) {
    if (bytes > PTRDIFF_MAX - kLargePage) throw std::bad_alloc();
    const size_t whole = (bytes + kLargePage - 1) / kLargePage * kLargePage;
    const std::lock_guard lock(mutex_);
    auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Block& block) {
      return block.bytes >= whole && block.bytes - whole <= whole / 8;
    });
    if (found == kept_.end()) {
      add(whole);
      found = std::prev(kept_.end());
    } else {
      size_ -= found->bytes;
    }
    used_.splice(used_.end(), kept_, found);
    return found->buffer.get();
  }

  size_t size(void* memory) {
    const std::lock_guard lock(mutex_);
    return used(memory)->bytes;
  }

  void give_back(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto block = used(memory);
#if defined(MADV_FREE)
    // The system may still take the pages whenever it is short of memory.
    if (block->bytes <= kMostKept && madvise(memory, block->bytes, MADV_FREE) == 0) {
      kept_.splice(kept_.end(), used_, block);
      size_ += block->bytes;
      for (; size_ > kMostKept; kept_.pop_front()) size_ -= kept_.front().bytes;
      return;
    }
#endif
    used_.erase(block);
  }

 private:
  void add(size_t bytes) {
    try {
      kept_.emplace_back(bytes);
    } catch (const std::bad_alloc&) {
      // What is kept for later may be what is missing.
      kept_.clear();
      size_ = 0;
      kept_.emplace_back(bytes);
    }
  }

  std::list<Block>::iterator used(void* memory) {
    return std::find_if(used_.begin(), used_.end(), [&](const Block& block) { return block.buffer.get() == memory; });
  }

  std::mutex mutex_;
  std::list<Block> kept_, used_;
  size_t size_ = 0;  // of what is kept
};

// Never destroyed: arrays may outlive every destructor.
Store& store() {
  static Store* const the = new Store;
  return *the;
}

}  // namespace

void* take_memory(size_t bytes) try { return store().take(bytes); } catch (const std::bad_alloc&) {
  return nullptr;
}

void* resize_memory(void* memory, size_t bytes) {
  void* const larger = take_memory(bytes);
  if (!larger) return nullptr;
  std::memcpy(larger, memory, std::min(store().size(memory), bytes));
  give_back_memory(memory);
  return larger;
}

void give_back_memory(void* memory) { store().give_back(memory); }

}  // namespace depthgauge
