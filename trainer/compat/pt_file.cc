#include "cohort/trainer/compat/pt_file.h"

#include <cctype>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/trainer/compat/pt/error.h"
#include "cohort/trainer/compat/pt/reader.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using Layout = pt::StoredTensor::Layout;

// As c10::toString has the types of torch.dtype. Newer ones differ in the first letter alone.
std::string NameInLibtorch(const std::string& type) {
  static const std::map<std::string_view, std::string_view> kNames = {{"float64", "Double"},
                                                                      {"float32", "Float"},
                                                                      {"float16", "Half"},
                                                                      {"bfloat16", "BFloat16"},
                                                                      {"int64", "Long"},
                                                                      {"int32", "Int"},
                                                                      {"int16", "Short"},
                                                                      {"int8", "Char"},
                                                                      {"uint8", "Byte"},
                                                                      {"complex128", "ComplexDouble"},
                                                                      {"complex64", "ComplexFloat"},
                                                                      {"complex32", "ComplexHalf"},
                                                                      {"uint16", "UInt16"},
                                                                      {"uint32", "UInt32"},
                                                                      {"uint64", "UInt64"}};
  const auto found = kNames.find(type);
  if (found != kNames.end()) return std::string(found->second);
  std::string name = type;
  name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  return name;
}

at::ScalarType TypeInLibtorch(const std::string& type) {
  const std::string name = NameInLibtorch(type);
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto candidate = static_cast<at::ScalarType>(i);
    if (candidate != at::ScalarType::Undefined && name == c10::toString(candidate)) return candidate;
  }
  pt::Refuse("it has the type torch.", type, ", which libtorch ", TORCH_VERSION_MAJOR, ".", TORCH_VERSION_MINOR,
             " lacks; convert it in Python, or use a newer libtorch");
}

// Makes the tensors that a file describes. Those that share a storage there share it here.
class Maker {
 public:
  explicit Maker(pt::Reader& reader) : reader_(reader) {}

  at::Tensor Make(const pt::StoredTensor& tensor) {
    switch (tensor.layout) {
      case Layout::kStrided:
        return MakeStrided(tensor);
      case Layout::kMeta:
        return at::empty(tensor.sizes, at::TensorOptions(TypeInLibtorch(tensor.type)).device(at::kMeta));
      case Layout::kCoo:
        return MakeCoo(tensor);
      default:
        return MakeCompressed(tensor);
    }
  }

 private:
  at::Tensor MakeStrided(const pt::StoredTensor& tensor) {
    const at::TensorOptions options(TypeInLibtorch(tensor.type));
    for (const int64_t size : tensor.sizes) {
      if (size == 0) return at::empty(tensor.sizes, options);
    }
    at::Tensor& bytes = bytes_[reader_.NameOfElements(tensor)];
    if (!bytes.defined()) {
      const std::string elements = reader_.Elements(tensor);
      bytes = at::empty({static_cast<int64_t>(elements.size())}, at::kByte);
      if (!elements.empty()) std::memcpy(bytes.data_ptr(), elements.data(), elements.size());
    }
    return at::empty({0}, options).set_(bytes.storage(), tensor.offset, tensor.sizes, tensor.strides);
  }

  // Both check that the indices lie within the sizes.
  at::Tensor MakeCoo(const pt::StoredTensor& tensor) {
    const at::Tensor indices = Make(tensor.parts[0]), values = Make(tensor.parts[1]);
    at::_validate_sparse_coo_tensor_args(indices, values, tensor.sizes);
    const at::Tensor made = at::sparse_coo_tensor(indices, values, tensor.sizes, values.options().layout(at::kSparse));
    return tensor.coalesced ? made.coalesce() : made;
  }
  at::Tensor MakeCompressed(const pt::StoredTensor& tensor) {
    static const std::map<Layout, at::Layout> kLayouts = {{Layout::kCsr, at::kSparseCsr},
                                                          {Layout::kCsc, at::kSparseCsc},
                                                          {Layout::kBsr, at::kSparseBsr},
                                                          {Layout::kBsc, at::kSparseBsc}};
    const at::Layout layout = kLayouts.at(tensor.layout);
    const at::Tensor compressed = Make(tensor.parts[0]), plain = Make(tensor.parts[1]), values = Make(tensor.parts[2]);
    at::_validate_sparse_compressed_tensor_args(compressed, plain, values, tensor.sizes, layout);
    return at::sparse_compressed_tensor(compressed, plain, values, tensor.sizes, values.options().layout(layout));
  }

  pt::Reader& reader_;
  std::map<std::string, at::Tensor> bytes_;
};

}  // namespace

std::map<std::string, at::Tensor> ReadPtFile(const std::string& path, std::map<std::string, std::string>* left_out) {
  std::string what;  // of the tensor at hand
  std::string reason;
  try {
    pt::Reader reader(path);
    Maker maker(reader);
    std::map<std::string, at::Tensor> tensors;
    for (const auto& [name, tensor] : reader.contents().tensors) {
      what = "tensor \"" + name + "\": ";
      tensors.emplace(name, maker.Make(tensor));
    }
    if (left_out != nullptr) *left_out = reader.contents().left_out;
    return tensors;
  } catch (const pt::Error& error) {
    reason = error.what();
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  }
  throw c10::Error({"ReadPtFile", __FILE__, static_cast<uint32_t>(__LINE__)},
                   "can't read tensors from " + path + ": " + what + reason);
}

}  // namespace cohort::trainer
