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
  std::unique_ptr<Recycled, void (*)(Recycled*)> taken(take_memory(bytes), give_back_memory);
  const py::capsule owner(taken.get(), [](void* memory) { give_back_memory(static_cast<Recycled*>(memory)); });
  return py::array_t<unsigned char>(static_cast<py::ssize_t>(bytes), taken.release()->buffer.get(), owner);
}

}  // namespace

void bind_memory(py::module_& m) { m.def("memory", &memory, py::arg("bytes"), py::pos_only()); }

}  // namespace depthgauge
