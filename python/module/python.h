// CPython's C API, limited to the stable ABI of Python 3.11: one module serves every later version. Holders of the two
// things that must be given back: references and the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <utility>

namespace cohort::python {

// Owns one reference to a Python object, or none. Every use needs the GIL, the destructor too.
class Ref {
 public:
  Ref() = default;
  // Takes over the reference that a function of CPython returned; null means that it raised.
  explicit Ref(PyObject* owned) : object_(owned) {}
  static Ref New(PyObject* borrowed) { return Ref(Py_XNewRef(borrowed)); }
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
