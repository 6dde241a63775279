// comm::Communicator as a Python class.
#pragma once

#include <memory>

#include "cohort/comm/communicator.h"
#include "cohort/python/module/python.h"
#include "cohort/python/module/session.h"

namespace cohort::python {

// Adds the class Communicator to the module. False: an exception is set.
bool AddCommunicator(PyObject* module);

// A duplicate of the communicator behind a Python object, and the session that it needs. Without a session an exception
// is set.
struct Duplicated {
  std::shared_ptr<Session> session;
  std::unique_ptr<comm::Communicator> communicator;
};
Duplicated DuplicateOf(PyObject* communicator);

}  // namespace cohort::python
