#include "cohort/python/module/arguments.h"

#include <cmath>
#include <limits>

namespace cohort::python {

bool Bind(const PassedArguments& passed, const char* method, std::span<const char* const> names, size_t required,
          size_t positional, std::span<PyObject*> bound) {
  const auto count = static_cast<size_t>(passed.count);
  if (count > positional) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %zu arguments without a name, not %zu", method, positional,
                 count);
    return false;
  }
  for (size_t i = 0; i < bound.size(); ++i) bound[i] = i < count ? passed.values[i] : nullptr;
  const Py_ssize_t named = passed.names == nullptr ? 0 : PyTuple_Size(passed.names);
  for (Py_ssize_t k = 0; k < named; ++k) {
    PyObject* const name = PyTuple_GetItem(passed.names, k);
    size_t i = 0;
    while (i < names.size() && PyUnicode_CompareWithASCIIString(name, names[i]) != 0) ++i;
    if (i == names.size()) {
      PyErr_Format(PyExc_TypeError, "%s() has no argument %R", method, name);
      return false;
    }
    if (i < count) {
      PyErr_Format(PyExc_TypeError, "%s() got the argument %R twice", method, name);
      return false;
    }
    bound[i] = passed.values[passed.count + k];
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound[i] == nullptr) {
      PyErr_Format(PyExc_TypeError, "%s() lacks the argument '%s'", method, names[i]);
      return false;
    }
  }
  return true;
}

std::optional<std::chrono::nanoseconds> ReadSeconds(PyObject* object, std::chrono::nanoseconds otherwise) {
  if (object == nullptr || object == Py_None) return otherwise;
  const double seconds = PyFloat_AsDouble(object);
  if (seconds == -1.0 && PyErr_Occurred() != nullptr) return std::nullopt;
  if (std::isnan(seconds)) {
    PyErr_SetString(PyExc_ValueError, "a timeout is a number of seconds, not nan");
    return std::nullopt;
  }
  if (seconds < 0) {
    PyErr_Format(PyExc_ValueError, "a timeout is a number of seconds from 0 on, not %R", object);
    return std::nullopt;
  }
  constexpr double kMost = 9e9;  // nanoseconds of 285 years fit in 63 bits
  if (seconds >= kMost) return std::chrono::nanoseconds::max();
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

std::optional<int> ReadInt(PyObject* object, int otherwise) {
  if (object == nullptr) return otherwise;
  const long value = PyLong_AsLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) return std::nullopt;
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max()) {
    PyErr_Format(PyExc_ValueError, "%ld is out of range", value);
    return std::nullopt;
  }
  return static_cast<int>(value);
}

std::optional<std::string> ReadText(PyObject* object) {
  if (object == nullptr) return std::string();
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &size);
  if (text == nullptr) return std::nullopt;
  return std::string(text, static_cast<size_t>(size));
}

std::optional<bool> ReadBool(PyObject* object, bool otherwise) {
  if (object == nullptr) return otherwise;
  const int value = PyObject_IsTrue(object);
  if (value < 0) return std::nullopt;
  return value != 0;
}

}  // namespace cohort::python
