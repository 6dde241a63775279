// Messages as a Python class.
#pragma once

#include "cohort/python/module/python.h"

namespace cohort::python {

// Adds the class Messages to the module. False: an exception is set.
bool AddMessages(PyObject* module);

}  // namespace cohort::python
