// Memory for large tapes.
#include <pybind11/numpy.h>

#include <memory>

#include "bind/bind.hpp"
#include "common/recycled.hpp"

namespace py = pybind11;

namespace depthgauge {
namespace {

// Bytes that belong to the array, and to what is viewed through it.
py::array_t<unsigned char> memory(size_t bytes) {
  std::unique_ptr<void, void (*)(void*)> taken(take_memory(bytes), give_back_memory);
  const py::capsule owner(taken.get(), give_back_memory);
  auto* const start = static_cast<unsigned char*>(taken.release());
  return py::array_t<unsigned char>(static_cast<py::ssize_t>(bytes), start, owner);
}

}  // namespace

void bind_memory(py::module_& m) { m.def("memory", &memory, py::arg("bytes"), py::pos_only()); }

}  // namespace depthgauge
