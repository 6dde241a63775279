// The memory that an argument of a call stands for.
#pragma once

#include <memory>
#include <optional>

#include "cohort/comm/types.h"
#include "cohort/python/module/python.h"

namespace cohort::python {

// Elements that comm does not know are moved as others, and reduced where that gives the same.
enum class Elements {
  kPlain,
  kBool,     // bytes of 0 and 1; a sum is their or, a product their and
  kComplex,  // pairs of floats; only sums and averages reduce them
};

// Holds the object that the memory belongs to. Made and destroyed with the GIL.
class Memory {
 public:
  Memory() = default;
  Memory(Memory&&) noexcept = default;
  Memory& operator=(Memory&& other) noexcept {
    std::swap(buffer_, other.buffer_);
    std::swap(elements_, other.elements_);
    std::swap(view_, other.view_);
    std::swap(owner_, other.owner_);
    return *this;
  }
  ~Memory();

  // Reads an argument: a tuple (address, count, dtype[, owner[, device]]), an object with the buffer protocol (a numpy
  // array), or one with DLPack (a tensor). `device` is the number of a CUDA device, or None for host memory. False: an
  // exception is set, which names the argument `name`.
  bool Read(PyObject* object, bool writable, const char* name);

  const comm::Buffer& buffer() const { return buffer_; }
  Elements elements() const { return elements_; }

 private:
  bool ReadTuple(PyObject* tuple, const char* name);
  bool ReadBuffer(PyObject* object, bool writable, const char* name);
  bool ReadDlpack(PyObject* object, const char* name);

  comm::Buffer buffer_;
  Elements elements_ = Elements::kPlain;
  std::unique_ptr<Py_buffer> view_;  // some exporters let it point into itself: it stays where it is
  Ref owner_;
};

// A DataType from its number (dlaunch.DataType) or its name ("float32"). Nothing: an exception is set.
std::optional<comm::DataType> ReadDataType(PyObject* object);
// A ReduceOp from its number (dlaunch.ReduceOp) or its name ("sum"). Nothing: an exception is set.
std::optional<comm::ReduceOp> ReadReduceOp(PyObject* object);
// The operation that does on comm's elements what `op` means on these. Nothing: an exception is set.
std::optional<comm::ReduceOp> OpFor(Elements elements, comm::ReduceOp op);

}  // namespace cohort::python
