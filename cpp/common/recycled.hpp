// Memory for large arrays, handed out again after it was given back.
#pragma once

#include <cstddef>

namespace depthgauge {

// Memory of at least `bytes`, at a multiple of a large page and not cleared; null where there is none.
void* take_memory(size_t bytes);

// The same for `memory` that was taken: its content moves, as far as it fits.  Where there is none, all stays as it
// was.
void* resize_memory(void* memory, size_t bytes);

// Gives back what was taken.
void give_back_memory(void* memory);

}  // namespace depthgauge
