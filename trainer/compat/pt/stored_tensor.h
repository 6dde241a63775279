// How a file describes a tensor: which storage, which elements of it. Recognised here, made where there is a libtorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/trainer/compat/pt/pickle.h"

namespace cohort::trainer::pt {

// An array of elements in the file, of which tensors are views.
struct Storage {
  std::string key;
  std::string type;      // as torch.dtype prints it without "torch.": "float32"
  int64_t elements = 0;  // of that type
};

struct StoredTensor {
  enum class Layout { kStrided, kMeta, kCoo, kCsr, kCsc, kBsr, kBsc };
  Layout layout = Layout::kStrided;
  std::string type;
  std::vector<int64_t> sizes;
  // kStrided; within the storage, which ReadTensor has checked.
  Storage storage;
  int64_t elements = 0;  // of the tensor's type in all of the storage
  int64_t offset = 0;
  std::vector<int64_t> strides;
  // The stored elements are the conjugates, or the negatives, of the tensor's.
  bool conjugate = false, negative = false;
  // Sparse: indices and values; compressed indices, plain indices and values.
  std::vector<StoredTensor> parts;
  bool coalesced = false;  // kCoo
};

// The bytes of an element, or 0 for a type that is unknown.
int64_t ElementBytes(std::string_view type);
// Complex types have two parts in an element, which change their byte order each for itself.
bool IsComplex(std::string_view type);

// The value itself for one that torch::pickle_save wraps in a note of its type.
const Object& Unwrapped(const Object& object);
// Whether the value is a tensor, understood or not, or holds the elements of one without being any (a storage).
bool IsTensor(const Object& object);
bool IsStorage(const Object& object);
// The storage that a reference stands for. Throws Error where it is none or of a kind that is not understood.
Storage ReadStorage(const Object& reference);
// The attributes that a program gave a tensor: a value whose state they are, or null.
const Object* AttributesOfTensor(const Object& tensor);
// Reads the description. Throws Error for kinds of tensors that are not understood, which it names, and for those that
// reach beyond their storage.
StoredTensor ReadTensor(const Object& tensor);

}  // namespace cohort::trainer::pt
