// Memory for large tapes, handed out again after it was given back.
#pragma once

#include <cstddef>

#include "common/buffer.hpp"

namespace depthgauge {

struct Recycled {
  Buffer<unsigned char> buffer;
  size_t bytes;
};

// Memory of at least `bytes`, not cleared; throws std::bad_alloc.
Recycled* take_memory(size_t bytes);

// Gives back what `take_memory` returned.
void give_back_memory(Recycled* memory);

}  // namespace depthgauge
