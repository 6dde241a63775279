// The arguments of methods that are called without building tuples and dictionaries (METH_FASTCALL | METH_KEYWORDS).
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "cohort/python/module/python.h"

namespace cohort::python {

// The arguments as Python passes them to such a method.
struct PassedArguments {
  PyObject* const* values;
  Py_ssize_t count;
  PyObject* names;
};

// Sorts the arguments into `bound`, one place a name; what was not passed is null. The first `positional` may come
// without their name, the first `required` must come. False: an exception is set.
bool Bind(const PassedArguments& passed, const char* method, std::span<const char* const> names, size_t required,
          size_t positional, std::span<PyObject*> bound);

// Seconds as a number; null and None mean `otherwise`. Nothing: an exception is set.
std::optional<std::chrono::nanoseconds> ReadSeconds(PyObject* object, std::chrono::nanoseconds otherwise);
// null means `otherwise`. Nothing: an exception is set.
std::optional<int> ReadInt(PyObject* object, int otherwise);
std::optional<std::string> ReadText(PyObject* object);
std::optional<bool> ReadBool(PyObject* object, bool otherwise);

}  // namespace cohort::python
