#include "cohort/trainer/compat/pt/stored_tensor.h"

#include <algorithm>
#include <map>
#include <utility>

#include "cohort/trainer/compat/pt/object_text.h"

namespace cohort::trainer::pt {
namespace {

using Kind = Object::Kind;
using Layout = StoredTensor::Layout;
using Arguments = std::vector<Object*>;

constexpr int kDeepest = 20;
constexpr double kMostElements = 1e18;
constexpr int64_t kMostStorage = int64_t{1} << 56;  // so that its bytes are a number
// Indices and values of a sparse tensor are looked through, so that one stored element may not stand for any number.
constexpr double kMostRepeated = 1e7;

std::string_view TypeOfStorage(std::string_view name) {
  static const std::map<std::string_view, std::string_view> kTypes = {{"DoubleStorage", "float64"},
                                                                      {"FloatStorage", "float32"},
                                                                      {"HalfStorage", "float16"},
                                                                      {"BFloat16Storage", "bfloat16"},
                                                                      {"LongStorage", "int64"},
                                                                      {"IntStorage", "int32"},
                                                                      {"ShortStorage", "int16"},
                                                                      {"CharStorage", "int8"},
                                                                      {"ByteStorage", "uint8"},
                                                                      {"BoolStorage", "bool"},
                                                                      {"ComplexDoubleStorage", "complex128"},
                                                                      {"ComplexFloatStorage", "complex64"},
                                                                      {"UntypedStorage", "uint8"},
                                                                      {"_UntypedStorage", "uint8"}};
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || !name.starts_with("torch")) return "";
  const auto found = kTypes.find(name.substr(dot + 1));
  return found == kTypes.end() ? "" : found->second;
}

const Object& Argument(const Arguments& arguments, size_t place) {
  if (place >= arguments.size()) Refuse("its pickle describes a tensor in a way that is unknown");
  return Unwrapped(*arguments[place]);
}

int64_t Number(const Object& object) {
  if (object.kind != Kind::kInt || !object.text.empty()) Refuse("its pickle has something else where a size belongs");
  return object.number;
}

// The items of a tuple, a list or a torch.Size.
std::vector<int64_t> Numbers(const Object& object) {
  if (CalleeOf(object) == "torch.Size") return Numbers(Argument(object.arguments(), 0));
  if (object.kind != Kind::kTuple && object.kind != Kind::kList) {
    Refuse("its pickle has something else where sizes belong");
  }
  std::vector<int64_t> numbers;
  for (const Object* item : object.items()) numbers.push_back(Number(*item));
  return numbers;
}

std::string TypeNamed(const Object& object) {
  std::string_view name = object.kind == Kind::kName ? object.text : "";
  if (!name.starts_with("torch.")) Refuse("its pickle has something else where a type belongs");
  return std::string(name.substr(6));
}

int64_t KnownElementBytes(std::string_view type) {
  const int64_t bytes = ElementBytes(type);
  if (bytes == 0) Refuse("it has the type torch.", type, ", which is unknown");
  return bytes;
}

// The beginning of the part of a storage that a file before PyTorch 0.4 may mean: key, offset, elements.
int64_t OffsetOfView(const Arguments& id, int64_t elements) {
  if (id.size() <= 5 || id[5]->kind == Kind::kNone) return 0;
  const int64_t offset = Number(Argument(id[5]->items(), 1));
  if (offset < 0 || offset > elements) Refuse("it begins beyond its storage");
  return offset;
}

// Refuses tensors that reach beyond their storage. Floating point cannot overflow: a value that is not exact is too
// large anyway.
void CheckExtent(const StoredTensor& tensor) {
  if (tensor.sizes.size() != tensor.strides.size())
    Refuse("it has ", tensor.sizes.size(), " sizes and ", tensor.strides.size(), " strides");
  bool empty = false;
  double last = static_cast<double>(tensor.offset);
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.strides[i] < 0) Refuse("it has a negative stride");
    empty = empty || tensor.sizes[i] == 0;
    last += static_cast<double>(tensor.sizes[i] - 1) * static_cast<double>(tensor.strides[i]);
  }
  if (tensor.offset < 0 || (!empty && last >= static_cast<double>(tensor.elements))) {
    Refuse("it reaches beyond its storage of ", tensor.elements, " elements");
  }
}

double CheckSizes(const std::vector<int64_t>& sizes) {
  double elements = 1;
  for (const int64_t size : sizes) {
    if (size < 0) Refuse("it has a negative size");
    elements *= static_cast<double>(std::max<int64_t>(size, 1));
  }
  if (elements >= kMostElements) Refuse("it has ", elements, " elements");
  return elements;
}

// {"conj": True, ...}: what the elements of a tensor mean.
void ReadProperties(const Object& properties, StoredTensor& tensor) {
  for (const auto& [key, value] : properties.entries()) {
    if (value->kind != Kind::kBool || value->number == 0) {
      if (value->kind != Kind::kBool) Refuse("it has the property ", Printed(*key), ", which is not understood");
      continue;
    }
    if (key->text == "conj") {
      tensor.conjugate = true;
    } else if (key->text == "neg") {
      tensor.negative = true;
    } else {
      Refuse("it has the property ", Printed(*key), ", which is not understood");
    }
  }
}

// storage, offset, sizes, strides, requires_grad, hooks[, type of version 3][, properties]
StoredTensor ReadStrided(const Arguments& arguments, int version) {
  StoredTensor tensor;
  const Object& reference = Argument(arguments, 0);
  tensor.storage = ReadStorage(reference);
  const Arguments& id = reference.parts->callee->items();
  tensor.type = version == 3 ? TypeNamed(Argument(arguments, 6)) : tensor.storage.type;
  tensor.elements = tensor.storage.elements * KnownElementBytes(tensor.storage.type) / KnownElementBytes(tensor.type);
  tensor.offset = Number(Argument(arguments, 1));
  const int64_t view = OffsetOfView(id, tensor.elements);
  if (view > 0 && tensor.offset >= 0 && tensor.offset < tensor.elements) tensor.offset += view;
  tensor.sizes = Numbers(Argument(arguments, 2));
  tensor.strides = Numbers(Argument(arguments, 3));
  const size_t properties = version == 3 ? 7 : 6;
  if (properties < arguments.size()) ReadProperties(*arguments[properties], tensor);
  CheckSizes(tensor.sizes);
  CheckExtent(tensor);
  if (id[3]->text == "meta") tensor.layout = Layout::kMeta;
  return tensor;
}

StoredTensor ReadMeta(const Arguments& arguments) {
  StoredTensor tensor;
  tensor.layout = Layout::kMeta;
  tensor.type = TypeNamed(Argument(arguments, 0));
  KnownElementBytes(tensor.type);
  tensor.sizes = Numbers(Argument(arguments, 1));
  CheckSizes(tensor.sizes);
  return tensor;
}

StoredTensor Read(const Object& object, int depth);

StoredTensor ReadPart(const Object& object, int depth) {
  StoredTensor part = Read(object, depth);
  const double elements = CheckSizes(part.sizes);
  if (part.layout != Layout::kStrided || (elements > static_cast<double>(part.elements) && elements > kMostRepeated)) {
    Refuse("it is a sparse tensor whose indices or values are no plain tensors");
  }
  return part;
}

// layout, (indices, values, sizes[, coalesced]) or (compressed indices, plain indices, values, sizes)
StoredTensor ReadSparse(const Arguments& arguments, int depth) {
  static const std::map<std::string_view, Layout> kLayouts = {{"torch.sparse_coo", Layout::kCoo},
                                                              {"torch.sparse_csr", Layout::kCsr},
                                                              {"torch.sparse_csc", Layout::kCsc},
                                                              {"torch.sparse_bsr", Layout::kBsr},
                                                              {"torch.sparse_bsc", Layout::kBsc}};
  // A name, or a call that looks it up.
  const Object& named = Argument(arguments, 0);
  const std::string_view layout = named.kind == Kind::kCall ? Argument(named.arguments(), 0).text : named.text;
  const auto found = kLayouts.find(layout);
  if (found == kLayouts.end())
    Refuse("it is a sparse tensor of the layout ", Printed(named), ", which is not understood");
  StoredTensor tensor;
  tensor.layout = found->second;
  const Arguments& data = Argument(arguments, 1).items();
  const size_t parts = tensor.layout == Layout::kCoo ? 2 : 3;
  for (size_t i = 0; i < parts; ++i) tensor.parts.push_back(ReadPart(Argument(data, i), depth));
  tensor.sizes = Numbers(Argument(data, parts));
  CheckSizes(tensor.sizes);
  tensor.type = tensor.parts.back().type;
  if (tensor.layout == Layout::kCoo && data.size() > 3)
    tensor.coalesced = data[3]->kind == Kind::kBool && data[3]->number == 1;
  return tensor;
}

// The same elements on another device, whose type may be another.
StoredTensor ReadMoved(const Arguments& arguments, int depth) {
  StoredTensor tensor = Read(Argument(arguments, 0), depth);
  const std::string type = TypeNamed(Argument(arguments, 1));
  if (type != tensor.type) {
    Refuse("it is a tensor of ", Printed(Argument(arguments, 2)), " with the type torch.", type, ", saved as torch.",
           tensor.type, "; save tensor.cpu() in Python");
  }
  return tensor;
}

[[noreturn]] void RefuseKind(std::string_view function) {
  static const std::map<std::string_view, std::string_view> kKnown = {
      {"_rebuild_qtensor", "a quantized tensor; save tensor.dequantize() or tensor.int_repr() in Python"},
      {"_rebuild_nested_tensor", "a nested tensor; save tensor.unbind() in Python"},
      {"_rebuild_device_tensor_from_numpy", "a tensor of another device as a numpy array; save tensor.cpu() in Python"},
      {"_rebuild_xla_tensor", "a tensor of another device as a numpy array; save tensor.cpu() in Python"},
      {"_rebuild_njt", "a nested tensor; save tensor.unbind() in Python"}};
  const auto found = kKnown.find(function.substr(function.rfind('.') + 1));
  if (found != kKnown.end()) Refuse("it is ", found->second);
  Refuse("it is made by ", function, ", which is not understood; save a plain tensor in Python");
}

StoredTensor ReadCall(std::string_view function, const Arguments& arguments, int depth) {
  constexpr std::string_view kUtils = "torch._utils.";
  if (function.starts_with(kUtils)) {
    function.remove_prefix(kUtils.size());
  } else if (!function.starts_with("torch._tensor.")) {
    RefuseKind(function);
  }
  if (function == "_rebuild_tensor" || function == "_rebuild_tensor_v2") return ReadStrided(arguments, 2);
  if (function == "_rebuild_tensor_v3") return ReadStrided(arguments, 3);
  if (function == "_rebuild_parameter" || function == "_rebuild_parameter_with_state") {
    return Read(Argument(arguments, 0), depth);
  }
  if (function == "_rebuild_sparse_tensor" || function == "_rebuild_sparse_csr_tensor") {
    return ReadSparse(arguments, depth);
  }
  if (function == "_rebuild_meta_tensor_no_storage") return ReadMeta(arguments);
  if (function == "_rebuild_device_tensor_from_cpu_tensor") return ReadMoved(arguments, depth);
  // function, class, arguments, attributes
  if (function == "torch._tensor._rebuild_from_type_v2" || function == "torch._tensor._rebuild_from_type") {
    const std::string_view inner = Argument(arguments, 0).text, type = Argument(arguments, 1).text;
    if (inner.ends_with("._rebuild_wrapper_subclass")) {
      Refuse("it is a ", type, ", whose elements only its class can compute; save a plain tensor in Python",
             type.ends_with("DTensor") ? " (tensor.full_tensor())" : "");
    }
    return ReadCall(inner, Argument(arguments, 2).items(), depth);
  }
  RefuseKind(function);
}

StoredTensor Read(const Object& object, int depth) {
  const Object& tensor = Unwrapped(object);
  if (depth > kDeepest) Refuse("its pickle wraps a tensor again and again");
  if (!IsTensor(tensor)) Refuse("it is made of something else than a tensor: ", TypeOf(tensor));
  return ReadCall(CalleeOf(tensor), tensor.arguments(), depth + 1);
}

}  // namespace

int64_t ElementBytes(std::string_view type) {
  static const std::map<std::string_view, int64_t> kBytes = {
      {"float64", 8},        {"float32", 4},     {"float16", 2},       {"bfloat16", 2},        {"int64", 8},
      {"int32", 4},          {"int16", 2},       {"int8", 1},          {"uint8", 1},           {"bool", 1},
      {"complex128", 16},    {"complex64", 8},   {"complex32", 4},     {"uint16", 2},          {"uint32", 4},
      {"uint64", 8},         {"float8_e5m2", 1}, {"float8_e4m3fn", 1}, {"float8_e5m2fnuz", 1}, {"float8_e4m3fnuz", 1},
      {"float8_e8m0fnu", 1}, {"bits8", 1},       {"bits16", 2},        {"float4_e2m1fn_x2", 1}};
  const auto found = kBytes.find(type);
  return found == kBytes.end() ? 0 : found->second;
}

bool IsComplex(std::string_view type) { return type.starts_with("complex"); }

const Object& Unwrapped(const Object& object) {
  const Object* inner = &object;
  for (int depth = 0; depth < kDeepest && inner->kind == Kind::kCall && !inner->arguments().empty(); ++depth) {
    const std::string_view callee = CalleeOf(*inner);
    if (!callee.starts_with("torch.jit._pickle.restore_type_tag") && !callee.starts_with("torch.jit._pickle.build_")) {
      break;
    }
    inner = inner->arguments()[0];
  }
  return *inner;
}

bool IsTensor(const Object& object) {
  if (object.kind != Kind::kCall) return false;
  std::string_view callee = CalleeOf(object);
  if (!callee.starts_with("torch.")) return false;
  return callee.substr(callee.rfind('.') + 1).starts_with("_rebuild_");
}

bool IsStorage(const Object& object) {
  if (object.kind != Kind::kReference) return false;
  const Arguments& id = object.parts->callee->items();
  return !id.empty() && id[0]->text == "storage";
}

const Object* AttributesOfTensor(const Object& tensor) {
  const std::string_view callee = CalleeOf(tensor);
  const Arguments& arguments = tensor.arguments();
  if (tensor.parts->state != nullptr) return tensor.parts->state;
  const bool has_state = callee.ends_with("._rebuild_parameter_with_state") ||
                         callee.ends_with("._rebuild_from_type_v2") || callee.ends_with("._rebuild_from_type");
  return has_state && arguments.size() == 4 ? arguments[3] : nullptr;
}

Storage ReadStorage(const Object& reference) {
  if (!IsStorage(reference)) Refuse("its pickle makes a tensor of something else than a storage");
  const Arguments& id = reference.parts->callee->items();
  if (id.size() < 5) Refuse("its pickle describes a storage in a way that is unknown");
  const std::string type(TypeOfStorage(id[1]->text));
  if (type.empty()) Refuse("it is in a storage of the kind ", Printed(*id[1]), ", which is not understood");
  Storage storage{.key = KeyText(*id[2]), .type = type, .elements = Number(*id[4])};
  if (storage.elements < 0 || storage.elements > kMostStorage) {
    Refuse("its storage ", storage.key, " has ", storage.elements, " elements");
  }
  return storage;
}

StoredTensor ReadTensor(const Object& tensor) { return Read(tensor, 0); }

}  // namespace cohort::trainer::pt
