// Memory in pieces, as lists of tensors have it: calls take one piece, so these are copied together and apart.
#pragma once

#include "cohort/python/module/python.h"

namespace cohort::python {

// join(pieces, filled): (address, owner) of memory with room for all pieces one after another, each (address, bytes);
// with `filled` it holds their bytes. It lives as long as `owner`. Large copies run without the GIL.
PyObject* Join(PyObject* module, PyObject* args);
// part(owner, pieces): copies the memory of join() to the pieces, which are as large together.
PyObject* Part(PyObject* module, PyObject* args);

}  // namespace cohort::python
