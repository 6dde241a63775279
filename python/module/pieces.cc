#include "cohort/python/module/pieces.h"

#include <cstring>
#include <optional>
#include <vector>

namespace cohort::python {
namespace {

constexpr size_t kWithoutGil = 65'536;  // copying more takes longer than giving the GIL away

struct Piece {
  char* address;
  size_t bytes;
};

struct Pieces {
  std::vector<Piece> all;
  size_t bytes = 0;
};

// Nothing: an exception is set.
std::optional<Pieces> Read(PyObject* list) {
  Pieces pieces;
  const Py_ssize_t count = PyList_Size(list);
  if (count < 0) return std::nullopt;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const pair = PyList_GetItem(list, i);
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
      PyErr_SetString(PyExc_TypeError, "a piece is a tuple (address, bytes)");
      return std::nullopt;
    }
    Piece piece{static_cast<char*>(PyLong_AsVoidPtr(PyTuple_GetItem(pair, 0))),
                PyLong_AsSize_t(PyTuple_GetItem(pair, 1))};
    if (PyErr_Occurred() != nullptr) return std::nullopt;
    if (piece.bytes > static_cast<size_t>(PY_SSIZE_T_MAX) - pieces.bytes) {
      PyErr_SetString(PyExc_OverflowError, "the pieces are larger together than any memory");
      return std::nullopt;
    }
    pieces.bytes += piece.bytes;
    if (piece.bytes > 0) pieces.all.push_back(piece);
  }
  return pieces;
}

template <typename Copy>
void ForEach(const Pieces& pieces, char* place, Copy copy) {
  const auto run = [&] {
    for (const Piece& piece : pieces.all) {
      copy(piece, place);
      place += piece.bytes;
    }
  };
  if (pieces.bytes < kWithoutGil) return run();
  GilRelease release;
  run();
}

}  // namespace

PyObject* Join(PyObject*, PyObject* args) {
  PyObject* list = nullptr;
  int filled = 0;
  if (!PyArg_ParseTuple(args, "Op:join", &list, &filled)) return nullptr;
  const std::optional<Pieces> pieces = Read(list);
  if (!pieces.has_value()) return nullptr;
  const Ref owner(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(pieces->bytes)));
  if (!owner) return nullptr;
  char* const memory = PyByteArray_AsString(owner.get());
  if (filled != 0) {
    ForEach(*pieces, memory, [](const Piece& piece, char* place) { std::memcpy(place, piece.address, piece.bytes); });
  }
  const Ref address(PyLong_FromVoidPtr(memory));
  return address ? PyTuple_Pack(2, address.get(), owner.get()) : nullptr;
}

PyObject* Part(PyObject*, PyObject* args) {
  PyObject *owner = nullptr, *list = nullptr;
  if (!PyArg_ParseTuple(args, "OO:part", &owner, &list)) return nullptr;
  const std::optional<Pieces> pieces = Read(list);
  if (!pieces.has_value()) return nullptr;
  if (!PyByteArray_Check(owner) || static_cast<size_t>(PyByteArray_Size(owner)) != pieces->bytes) {
    PyErr_SetString(PyExc_ValueError, "the pieces are not as large together as the memory");
    return nullptr;
  }
  ForEach(*pieces, PyByteArray_AsString(owner),
          [](const Piece& piece, const char* place) { std::memcpy(piece.address, place, piece.bytes); });
  Py_RETURN_NONE;
}

}  // namespace cohort::python
