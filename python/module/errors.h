// Statuses as Python exceptions.
#pragma once

#include "absl/status/status.h"
#include "cohort/python/module/python.h"

namespace cohort::python {

// Adds dlaunch.Error and its subclasses, one for each code that Communicator documents. False: an exception is set.
bool AddErrors(PyObject* module);
// Sets the exception of `status`, which is not OK, with its whole text. Returns null.
PyObject* Raise(const absl::Status& status);

}  // namespace cohort::python
