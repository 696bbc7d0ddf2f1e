// Memory for large tapes, handed out again after it was given back.
#pragma once

#include <cstddef>

namespace depthgauge {

// Memory of at least `bytes`, aligned to a large page and not cleared; throws std::bad_alloc.
void* take_memory(size_t bytes);

// Gives back what `take_memory` returned.
void give_back_memory(void* memory);

}  // namespace depthgauge
