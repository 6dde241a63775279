// The runtime of this process as a Python object, dlaunch.Runtime, and what communicators keep of it.
#pragma once

#include <memory>

#include "cohort/python/module/python.h"
#include "cohort/runtime/bootstrap/bootstrap.h"
#include "cohort/runtime/runtime.h"

namespace cohort::python {

// A key-value store of Python, for programs that another launcher started: two functions, put(key: str, value: bytes)
// and get(key: str, seconds: float) -> bytes, which raises when the time has passed.
class PythonStore final : public runtime::KeyValueStore {
 public:
  PythonStore(PyObject* put, PyObject* get) : put_(Ref::New(put)), get_(Ref::New(get)) {}
  absl::Status Put(std::string_view key, std::string_view value) override;
  // kCancelled: `get` raised KeyboardInterrupt.
  absl::StatusOr<std::string> Get(std::string_view key, runtime::Deadline deadline) override;
  bool interrupted() const { return interrupted_; }

 private:
  bool interrupted_ = false;
  Ref put_;
  Ref get_;
};

// Communicators share it: it goes after the last of them. Destroyed with the GIL.
struct Session {
  ~Session();
  std::unique_ptr<PythonStore> store;
  std::unique_ptr<runtime::Runtime> runtime;
};

// Adds the class Runtime to the module. False: an exception is set.
bool AddRuntime(PyObject* module);
// The session of a Runtime object; null with a TypeError for any other object.
std::shared_ptr<Session> SessionOf(PyObject* object);

}  // namespace cohort::python
