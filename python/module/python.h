// CPython's C API, limited to what Python 3.9 and all later versions have: one module serves them. Holders of the two
// things that must be given back: references and the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x03090000
#endif
#include <Python.h>

#if Py_LIMITED_API < 0x030B0000
// The buffer protocol joined the stable ABI with 3.11, and PyUnicode_AsUTF8AndSize and METH_FASTCALL with 3.10.
// Python 3.9 and 3.10, which change no more, have the same functions and values, and the same structure.
extern "C" {
struct Py_buffer {
  void* buf;
  PyObject* obj;
  Py_ssize_t len;
  Py_ssize_t itemsize;
  int readonly;
  int ndim;
  char* format;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  Py_ssize_t* suboffsets;
  void* internal;
};
PyAPI_FUNC(int) PyObject_CheckBuffer(PyObject* object);
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject* object, Py_buffer* view, int flags);
PyAPI_FUNC(void) PyBuffer_Release(Py_buffer* view);
PyAPI_FUNC(const char*) PyUnicode_AsUTF8AndSize(PyObject* object, Py_ssize_t* size);
}
inline constexpr int METH_FASTCALL = 0x80;
inline constexpr int PyBUF_WRITABLE = 0x1;
inline constexpr int PyBUF_FORMAT = 0x4;
inline constexpr int PyBUF_C_CONTIGUOUS = 0x38;
inline constexpr int PyBUF_READ = 0x100;
inline constexpr int PyBUF_WRITE = 0x200;
#endif

#include <utility>

namespace cohort::python {

// Owns one reference to a Python object, or none. Every use needs the GIL, the destructor too.
class Ref {
 public:
  Ref() = default;
  // Takes over the reference that a function of CPython returned; null means that it raised.
  explicit Ref(PyObject* owned) : object_(owned) {}
  static Ref New(PyObject* borrowed) {
    Py_XINCREF(borrowed);
    return Ref(borrowed);
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Makes `value` an attribute of the module; null means that CPython raised. Returns false with an exception set.
inline bool AddTo(PyObject* module, const char* name, PyObject* value) {
  Ref owned = Ref::New(value);
  if (!owned || PyModule_AddObject(module, name, owned.get()) != 0) return false;
  owned.release();  // the module's now
  return true;
}

// Lets other Python threads run for a scope, in which nothing of Python may be touched.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  // At the end of the interpreter CPython ends a thread here by unwinding it (pthread_exit).
  ~GilRelease() noexcept(false) { PyEval_RestoreThread(state_); }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace cohort::python
