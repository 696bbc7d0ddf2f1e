// Arrays that own memory which is used again (NumPy's NEP 49).
#include <pybind11/numpy.h>

#include <cstring>

#include "bind/arrays.hpp"
#include "bind/bind.hpp"
#include "common/recycled.hpp"

namespace depthgauge {
namespace {

// From this many bytes on.
constexpr py::ssize_t kLarge = 4 << 20;

// As NumPy's C API has it: PyDataMem_Handler, version 1.
struct Handler {
  char name[127];
  uint8_t version;
  void* context;
  void* (*malloc)(void* context, size_t bytes);
  void* (*calloc)(void* context, size_t count, size_t size);
  void* (*realloc)(void* context, void* memory, size_t bytes);
  void (*free)(void* context, void* memory, size_t bytes);
};

void* take_cleared(void*, size_t count, size_t size) {
  void* const memory = take_memory(count * size);
  return memory ? std::memset(memory, 0, count * size) : nullptr;
}

Handler handler = {"depthgauge",
                   1,
                   nullptr,
                   [](void*, size_t bytes) { return take_memory(bytes); },
                   take_cleared,
                   [](void*, void* memory, size_t bytes) { return resize_memory(memory, bytes); },
                   [](void*, void* memory, size_t) { give_back_memory(memory); }};

using SetHandler = PyObject* (*)(PyObject*);

// PyDataMem_SetHandler, without a build against NumPy's headers.
SetHandler find_set_handler() {
  const auto core = [] {
    try {
      return py::module_::import("numpy._core._multiarray_umath");
    } catch (const py::error_already_set&) {
      return py::module_::import("numpy.core._multiarray_umath");  // NumPy 1
    }
  }();
  constexpr int kPlace = 304;
  void** const api = py::reinterpret_borrow<py::capsule>(core.attr("_ARRAY_API")).get_pointer<void*>();
  return reinterpret_cast<SetHandler>(api[kPlace]);
}

// Found when the module is imported: to import here, at the first call, could wait for another thread that does.
// Never released: arrays may outlive the module.
struct Numpy {
  SetHandler set_handler;
  PyObject *handler, *empty;
};
Numpy numpy;

// New arrays of this thread have their memory from the store as long as this lives.
class FromStore {
 public:
  FromStore() : before_(py::reinterpret_steal<py::object>(numpy.set_handler(numpy.handler))) {
    if (!before_) throw py::error_already_set();
  }
  FromStore(const FromStore&) = delete;
  FromStore& operator=(const FromStore&) = delete;
  ~FromStore() {
    // An array that could not be made has left its error behind by now.
    const py::error_scope kept;
    py::reinterpret_steal<py::object>(numpy.set_handler(before_.ptr()));
    PyErr_Clear();
  }

 private:
  py::object before_;
};

}  // namespace

py::array empty(const py::tuple& shape, const py::dtype& dtype) {
  py::ssize_t bytes = dtype.itemsize();
  bool too_large = false;  // which NumPy is to say
  for (const py::handle size : shape) too_large |= __builtin_mul_overflow(bytes, size.cast<py::ssize_t>(), &bytes);
  if (!too_large && bytes < kLarge) return py::handle(numpy.empty)(shape, dtype);
  const FromStore store;
  return py::handle(numpy.empty)(shape, dtype);
}

void bind_memory(py::module_& m) {
  numpy = {find_set_handler(), py::capsule(&handler, "mem_handler").release().ptr(),
           py::module_::import("numpy").attr("empty").cast<py::object>().release().ptr()};
  m.def("empty", &empty, py::arg("shape"), py::arg("dtype"), py::pos_only());
}

}  // namespace depthgauge
