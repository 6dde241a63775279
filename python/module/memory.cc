#include "cohort/python/module/memory.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "cohort/python/module/arguments.h"

namespace cohort::python {
namespace {

using comm::DataType;

// DLPack's structures of version 0 (dlpack.h, github.com/dmlc/dlpack), which every exporter gives where no newer one is
// asked for.
struct DlDevice {
  int32_t type;
  int32_t id;
};
struct DlDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  int32_t ndim;
  DlDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
constexpr int kDlCpu = 1, kDlCuda = 2, kDlCudaHost = 3, kDlCudaManaged = 13;
constexpr int kDlInt = 0, kDlUint = 1, kDlFloat = 2, kDlBfloat = 4, kDlComplex = 5, kDlBool = 6;
constexpr int kDlFloat8E4m3fn = 10, kDlFloat8E5m2 = 12;

std::optional<DataType> Integer(bool is_signed, size_t bytes) {
  switch (bytes) {
    case 1:
      return is_signed ? DataType::kInt8 : DataType::kUint8;
    case 2:
      return is_signed ? DataType::kInt16 : DataType::kUint16;
    case 4:
      return is_signed ? DataType::kInt32 : DataType::kUint32;
    case 8:
      return is_signed ? DataType::kInt64 : DataType::kUint64;
    default:
      return std::nullopt;
  }
}

std::optional<DataType> Float(size_t bytes) {
  switch (bytes) {
    case 2:
      return DataType::kFloat16;
    case 4:
      return DataType::kFloat32;
    case 8:
      return DataType::kFloat64;
    default:
      return std::nullopt;
  }
}

// The type of a format of the struct module (PEP 3118); sizes are those of the item, since "l" has several.
std::optional<DataType> OfFormat(std::string_view format, size_t bytes, Elements* elements) {
  if (!format.empty() && (format[0] == '@' || format[0] == '=' || format[0] == '<')) format.remove_prefix(1);
  if (format.size() == 2 && format[0] == 'Z') {
    *elements = Elements::kComplex;
    return Float(bytes / 2);
  }
  if (format.size() != 1) return std::nullopt;
  if (format[0] == '?') {
    *elements = Elements::kBool;
    return DataType::kUint8;
  }
  if (std::strchr("efd", format[0]) != nullptr) return Float(bytes);
  if (std::strchr("bhilqn", format[0]) != nullptr) return Integer(true, bytes);
  if (std::strchr("cBHILQN", format[0]) != nullptr) return Integer(false, bytes);
  return std::nullopt;
}

std::optional<DataType> OfDlpack(DlDataType type, Elements* elements) {
  if (type.lanes != 1 || type.bits % 8 != 0) return std::nullopt;
  const size_t bytes = type.bits / 8;
  switch (type.code) {
    case kDlInt:
      return Integer(true, bytes);
    case kDlUint:
      return Integer(false, bytes);
    case kDlFloat:
      return Float(bytes);
    case kDlBfloat:
      return bytes == 2 ? std::optional(DataType::kBFloat16) : std::nullopt;
    case kDlComplex:
      *elements = Elements::kComplex;
      return Float(bytes / 2);
    case kDlBool:
      *elements = Elements::kBool;
      return bytes == 1 ? std::optional(DataType::kUint8) : std::nullopt;
    case kDlFloat8E4m3fn:
      return DataType::kFloat8E4M3;
    case kDlFloat8E5m2:
      return DataType::kFloat8E5M2;
    default:
      return std::nullopt;
  }
}

bool Refuse(PyObject* type, const char* name, const std::string& why) {
  PyErr_Format(type, "%s: %s", name, why.c_str());
  return false;
}

constexpr const char* kTypes =
    "bool, integers of 8 to 64 bits, float16, bfloat16, float32, float64, float8 (e4m3fn, e5m2), complex of float32 "
    "and "
    "float64; pass other memory as its bytes, (address, bytes, 'uint8')";

// An enumeration from its number or one of its names.
template <typename Value>
std::optional<Value> ReadNamed(PyObject* object, int end, const char* what) {
  if (PyLong_Check(object)) {
    const long number = PyLong_AsLong(object);
    if (number > 0 && number < end) return static_cast<Value>(number);
    if (PyErr_Occurred() == nullptr) PyErr_Format(PyExc_ValueError, "%ld is no %s", number, what);
    return std::nullopt;
  }
  const char* text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, nullptr) : nullptr;
  std::string names;
  for (int i = 1; i < end; ++i) {
    const std::string_view name = Name(static_cast<Value>(i));
    if (text != nullptr && name == text) return static_cast<Value>(i);
    names += std::string(i == 1 ? "" : ", ") + std::string(name);
  }
  if (PyErr_Occurred() == nullptr) PyErr_Format(PyExc_ValueError, "%R is no %s: %s", object, what, names.c_str());
  return std::nullopt;
}

}  // namespace

Memory::~Memory() {
  if (view_ != nullptr) PyBuffer_Release(view_.get());
}

bool Memory::Read(PyObject* object, bool writable, const char* name) {
  if (PyTuple_Check(object)) return ReadTuple(object, name);
  if (PyObject_CheckBuffer(object)) return ReadBuffer(object, writable, name);
  if (PyObject_HasAttrString(object, "__dlpack__")) return ReadDlpack(object, name);
  PyErr_Format(
      PyExc_TypeError,
      "%s: %R has no memory that can be used: pass a numpy array, an object with the buffer protocol or DLPack, "
      "or a tuple (address, count, dtype)",
      name, reinterpret_cast<PyObject*>(Py_TYPE(object)));
  return false;
}

bool Memory::ReadTuple(PyObject* tuple, const char* name) {
  const Py_ssize_t size = PyTuple_Size(tuple);
  if (size < 3 || size > 5) {
    return Refuse(PyExc_TypeError, name, "a tuple is (address, count, dtype[, owner[, device]])");
  }
  void* const address = PyLong_AsVoidPtr(PyTuple_GetItem(tuple, 0));
  const int64_t count = PyLong_AsLongLong(PyTuple_GetItem(tuple, 1));
  if (PyErr_Occurred() != nullptr) return false;
  const std::optional<DataType> dtype = ReadDataType(PyTuple_GetItem(tuple, 2));
  if (!dtype.has_value()) return false;
  if (size > 3) owner_ = Ref::New(PyTuple_GetItem(tuple, 3));
  buffer_ = comm::Buffer(address, count, *dtype);
  PyObject* const device = size > 4 ? PyTuple_GetItem(tuple, 4) : Py_None;
  if (device == Py_None) return true;
  const std::optional<int> ordinal = ReadInt(device, 0);
  if (!ordinal.has_value()) return false;
  buffer_.memory = comm::MemoryKind::kCuda;
  buffer_.device = *ordinal;
  return true;
}

bool Memory::ReadBuffer(PyObject* object, bool writable, const char* name) {
  auto view = std::make_unique<Py_buffer>();
  const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object, view.get(), flags) != 0) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_Format(PyExc_ValueError, "%s: %S (%s C-contiguous memory)", name, value != nullptr ? value : Py_None,
                 writable ? "an output is writable," : "an input is");
    Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
    return false;
  }
  view_ = std::move(view);
  const char* format = view_->format == nullptr ? "B" : view_->format;
  const auto bytes = static_cast<size_t>(view_->itemsize);
  const std::optional<DataType> dtype = OfFormat(format, bytes, &elements_);
  if (!dtype.has_value()) {
    return Refuse(PyExc_TypeError, name, "elements of format '" + std::string(format) + "' are not among " + kTypes);
  }
  buffer_ = comm::Buffer(view_->buf, view_->len / static_cast<int64_t>(comm::SizeOf(*dtype)), *dtype);
  return true;
}

bool Memory::ReadDlpack(PyObject* object, const char* name) {
  owner_ = Ref(PyObject_CallMethod(object, "__dlpack__", nullptr));
  if (!owner_) return false;
  const auto* tensor = static_cast<const DlTensor*>(PyCapsule_GetPointer(owner_.get(), "dltensor"));
  if (tensor == nullptr) return false;
  const std::optional<DataType> dtype = OfDlpack(tensor->dtype, &elements_);
  if (!dtype.has_value()) return Refuse(PyExc_TypeError, name, std::string("its elements are not among ") + kTypes);
  int64_t count = 1;
  for (int i = tensor->ndim - 1; i >= 0; --i) {
    if (tensor->strides != nullptr && tensor->shape[i] > 1 && tensor->strides[i] != count) {
      return Refuse(PyExc_ValueError, name, "its elements are not contiguous: pass a contiguous copy");
    }
    count *= tensor->shape[i];
  }
  if (elements_ == Elements::kComplex) count *= 2;
  auto* const data = static_cast<char*>(tensor->data) + tensor->byte_offset;
  switch (tensor->device.type) {
    case kDlCpu:
    case kDlCudaHost:
      buffer_ = comm::Buffer(data, count, *dtype);
      return true;
    case kDlCuda:
    case kDlCudaManaged:
      buffer_ = comm::Buffer(data, count, *dtype, comm::MemoryKind::kCuda, tensor->device.id);
      return true;
    default:
      return Refuse(PyExc_TypeError, name, "it lies on a device that is neither the CPU nor CUDA");
  }
}

std::optional<DataType> ReadDataType(PyObject* object) {
  return ReadNamed<DataType>(object, comm::kDataTypes, "data type");
}

std::optional<comm::ReduceOp> ReadReduceOp(PyObject* object) {
  return ReadNamed<comm::ReduceOp>(object, comm::kReduceOps, "reduction");
}

std::optional<comm::ReduceOp> OpFor(Elements elements, comm::ReduceOp op) {
  using comm::ReduceOp;
  if (elements == Elements::kPlain || op == ReduceOp::kUser) return op;
  if (elements == Elements::kBool) {
    if (op == ReduceOp::kSum) return ReduceOp::kMax;
    if (op == ReduceOp::kProduct) return ReduceOp::kMin;
    if (op != ReduceOp::kAvg && op != ReduceOp::kPreMulSum) return op;
  } else if (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
    return op;
  }
  PyErr_Format(PyExc_ValueError, "%s is not defined for %s elements", std::string(Name(op)).c_str(),
               elements == Elements::kBool ? "bool" : "complex");
  return std::nullopt;
}

}  // namespace cohort::python
