#include "cohort/trainer/compat/pt_file.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "cohort/trainer/compat/pt_archive.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// An object that a pickle can make. Objects live as long as their Pickle, since they may refer to each other in
// circles.
struct Object {
  enum class Kind { kOther, kMark, kNumber, kText, kName, kSequence, kDictionary, kStorage, kTensor };
  Kind kind = Kind::kOther;
  int64_t number = 0;
  std::string text;                                  // kText; kName: "module name"
  std::vector<Object*> items;                        // kSequence
  std::vector<std::pair<Object*, Object*>> entries;  // kDictionary
  at::Tensor tensor;                                 // kTensor; kStorage: one-dimensional
};
using Kind = Object::Kind;

at::ScalarType TypeOfStorage(const std::string& name) {
  static const std::map<std::string, at::ScalarType> kTypes = {{"torch FloatStorage", at::kFloat},
                                                               {"torch DoubleStorage", at::kDouble},
                                                               {"torch HalfStorage", at::kHalf},
                                                               {"torch BFloat16Storage", at::kBFloat16},
                                                               {"torch LongStorage", at::kLong},
                                                               {"torch IntStorage", at::kInt},
                                                               {"torch ShortStorage", at::kShort},
                                                               {"torch CharStorage", at::kChar},
                                                               {"torch ByteStorage", at::kByte},
                                                               {"torch BoolStorage", at::kBool},
                                                               {"torch ComplexFloatStorage", at::kComplexFloat},
                                                               {"torch ComplexDoubleStorage", at::kComplexDouble}};
  const auto found = kTypes.find(name);
  TORCH_CHECK(found != kTypes.end(), "it has a storage of an unknown kind, ", name);
  return found->second;
}

// An operation of one byte makes an object of a hundred. Files of large models have some hundred thousand.
constexpr size_t kMostObjects = 4'000'000;

// Runs the pickle's program on objects of its own.
//
// libtorch's torch::jit::Unpickler with a resolver that refuses classes does not do. As its source has it (that of
// PyTorch 2, with more checks than older ones):
// - A collections.OrderedDict becomes None, so that no state_dict is read.
// - Parameters are an unknown class. Integers of other than eight bytes are errors, and so is a pickle of a protocol
//   other than 2.
// - The index of LONG_BINPUT and the length of BINUNICODE are amounts of memory: 64 GiB for five bytes of a file.
// - A storage has the bytes that the pickle says, whatever the record has, and a tensor's offset, sizes and strides are
//   not compared with its storage: reading the tensor reads other memory of the process.
class Pickle {
 public:
  explicit Pickle(PtArchive& archive) : archive_(archive), program_(archive.Read("data.pkl")) {}

  // Runs the program; what it ends with.
  const Object& Run() {
    while (true) {
      const auto operation = static_cast<uint8_t>(Byte());
      if (operation == '.') return *Pop();
      Do(operation);
    }
  }

 private:
  char Byte() { return Bytes(1)[0]; }
  const char* Bytes(uint64_t count) {
    TORCH_CHECK(count <= program_.size() - place_, "its pickle ends too early");
    const char* begin = program_.data() + place_;
    place_ += count;
    return begin;
  }
  template <typename T>
  T Number() {  // little-endian, as this machine
    T value;
    std::memcpy(&value, Bytes(sizeof value), sizeof value);
    return value;
  }
  std::string Line() {
    const size_t end = program_.find('\n', place_);
    TORCH_CHECK(end != std::string::npos, "its pickle ends too early");
    std::string line = program_.substr(place_, end - place_);
    place_ = end + 1;
    return line;
  }

  Object* New(Kind kind) {
    TORCH_CHECK(objects_.size() < kMostObjects, "its pickle makes more than ", kMostObjects, " objects");
    objects_.emplace_back().kind = kind;
    return &objects_.back();
  }
  void Push(Object* object) { stack_.push_back(object); }
  void PushNumber(int64_t number) {
    Push(New(Kind::kNumber));
    stack_.back()->number = number;
  }
  void PushText(Kind kind, std::string text) {
    Push(New(kind));
    stack_.back()->text = std::move(text);
  }
  Object* Pop() {
    TORCH_CHECK(!stack_.empty() && stack_.back()->kind != Kind::kMark, "its pickle takes more than it made");
    Object* object = stack_.back();
    stack_.pop_back();
    return object;
  }
  Object* Top() {
    Object* object = Pop();
    Push(object);
    return object;
  }
  std::vector<Object*> PopToMark() {
    std::vector<Object*> items;
    while (!stack_.empty() && stack_.back()->kind != Kind::kMark) items.push_back(Pop());
    TORCH_CHECK(!stack_.empty(), "its pickle lacks a mark");
    stack_.pop_back();
    return {items.rbegin(), items.rend()};
  }
  void PushSequence(std::vector<Object*> items) {
    Push(New(Kind::kSequence));
    stack_.back()->items = std::move(items);
  }
  void PushLast(size_t count) {
    std::vector<Object*> items(count);
    for (size_t i = count; i > 0; --i) items[i - 1] = Pop();
    PushSequence(std::move(items));
  }
  Object* TopOf(Kind kind) {
    Object* object = Top();
    TORCH_CHECK(object->kind == kind, "its pickle puts items into what holds none");
    return object;
  }
  void SetItems(const std::vector<Object*>& items) {
    TORCH_CHECK(items.size() % 2 == 0, "its pickle has a key without a value");
    Object* dictionary = TopOf(Kind::kDictionary);
    for (size_t i = 0; i < items.size(); i += 2) dictionary->entries.emplace_back(items[i], items[i + 1]);
  }
  void Append(const std::vector<Object*>& items) {
    Object* list = TopOf(Kind::kSequence);
    list->items.insert(list->items.end(), items.begin(), items.end());
  }
  void Get(uint32_t index) {
    const auto found = memo_.find(index);
    TORCH_CHECK(found != memo_.end(), "its pickle refers to what it has not made");
    Push(found->second);
  }

  void Do(uint8_t operation) {
    if (!DoValue(operation) && !DoStructure(operation) && !DoMemo(operation)) {
      TORCH_CHECK(false, "its pickle has operation ", static_cast<int>(operation), ", which no file of tensors needs");
    }
  }
  bool DoValue(uint8_t operation);
  bool DoStructure(uint8_t operation);
  bool DoMemo(uint8_t operation);
  void PushLong();
  void Call();
  void LoadStorage();
  void MakeTensor(const std::vector<Object*>& arguments);

  PtArchive& archive_;
  std::string program_;
  size_t place_ = 0;
  std::deque<Object> objects_;
  std::vector<Object*> stack_;
  std::map<uint32_t, Object*> memo_;
  std::map<std::string, Object*> storages_;
};

void Pickle::PushLong() {
  const auto size = static_cast<uint8_t>(Byte());
  TORCH_CHECK(size <= 8, "its pickle has an integer of ", static_cast<int>(size), " bytes");
  const char* bytes = Bytes(size);
  uint64_t value = size > 0 && (bytes[size - 1] & 0x80) != 0 ? ~uint64_t{0} : 0;
  std::memcpy(&value, bytes, size);
  PushNumber(static_cast<int64_t>(value));
}

bool Pickle::DoValue(uint8_t operation) {
  switch (operation) {
    case 'N':  // None
      Push(New(Kind::kOther));
      return true;
    case 0x88:  // True
    case 0x89:  // False
      PushNumber(operation == 0x88 ? 1 : 0);
      return true;
    case 'K':
      PushNumber(Number<uint8_t>());
      return true;
    case 'M':
      PushNumber(Number<uint16_t>());
      return true;
    case 'J':
      PushNumber(Number<int32_t>());
      return true;
    case 0x8a:
      PushLong();
      return true;
    case 'G':  // a float: of no use here
      Bytes(8);
      Push(New(Kind::kOther));
      return true;
    case 'X': {
      const auto size = Number<uint32_t>();
      PushText(Kind::kText, std::string(Bytes(size), size));
      return true;
    }
    case 0x8c: {
      const auto size = Number<uint8_t>();
      PushText(Kind::kText, std::string(Bytes(size), size));
      return true;
    }
    case 'c': {
      const std::string module = Line();
      PushText(Kind::kName, module + " " + Line());
      return true;
    }
    case 0x93: {
      const Object* name = Pop();
      const Object* module = Pop();
      PushText(Kind::kName, module->text + " " + name->text);
      return true;
    }
    default:
      return false;
  }
}

bool Pickle::DoMemo(uint8_t operation) {
  switch (operation) {
    case 'q':
      memo_[Number<uint8_t>()] = Top();
      return true;
    case 'r':
      memo_[Number<uint32_t>()] = Top();
      return true;
    case 0x94:
      memo_[static_cast<uint32_t>(memo_.size())] = Top();
      return true;
    case 'h':
      Get(Number<uint8_t>());
      return true;
    case 'j':
      Get(Number<uint32_t>());
      return true;
    default:
      return false;
  }
}

bool Pickle::DoStructure(uint8_t operation) {
  switch (operation) {
    case 0x80:  // protocol
      Bytes(1);
      return true;
    case 0x95:  // frame
      Bytes(8);
      return true;
    case '(':
      Push(New(Kind::kMark));
      return true;
    case ')':
    case ']':
      PushSequence({});
      return true;
    case 't':
      PushSequence(PopToMark());
      return true;
    case 0x85:
    case 0x86:
    case 0x87:
      PushLast(operation - 0x84);
      return true;
    case '}':
      Push(New(Kind::kDictionary));
      return true;
    case 's':
    case 'u': {
      std::vector<Object*> items;
      if (operation == 'u') {
        items = PopToMark();
      } else {
        Object* value = Pop();
        items = {Pop(), value};
      }
      SetItems(items);
      return true;
    }
    case 'a':
      Append({Pop()});
      return true;
    case 'e':
      Append(PopToMark());
      return true;
    case 'Q':
      LoadStorage();
      return true;
    case 'R':
    case 0x81:  // a class, as a function
      Call();
      return true;
    case 'b':  // attributes of an object, such as a state_dict's _metadata
      Pop();
      TopOf(Kind::kDictionary);
      return true;
    default:
      return false;
  }
}

// ("storage", kind, key, location, elements)
void Pickle::LoadStorage() {
  const Object* id = Pop();
  const bool fits = id->kind == Kind::kSequence && id->items.size() == 5 && id->items[0]->text == "storage" &&
                    id->items[1]->kind == Kind::kName && id->items[2]->kind == Kind::kText &&
                    id->items[4]->kind == Kind::kNumber;
  TORCH_CHECK(fits, "its pickle refers to something else than a storage");
  Object*& known = storages_[id->items[2]->text];
  if (known == nullptr) {
    const at::ScalarType type = TypeOfStorage(id->items[1]->text);
    const int64_t elements = id->items[4]->number;
    const std::string data = archive_.Read("data/" + id->items[2]->text);
    const auto has = static_cast<int64_t>(data.size() / c10::elementSize(type));
    TORCH_CHECK(elements >= 0 && elements <= has, "it says that storage ", id->items[2]->text, " has ", elements,
                " elements, and brings ", has);
    known = New(Kind::kStorage);
    known->tensor = at::empty({elements}, type);
    if (elements > 0) std::memcpy(known->tensor.data_ptr(), data.data(), known->tensor.nbytes());
  }
  Push(known);
}

void Pickle::Call() {
  const Object* arguments = Pop();
  const Object* function = Pop();
  TORCH_CHECK(function->kind == Kind::kName && arguments->kind == Kind::kSequence,
              "its pickle calls what is no function");
  if (function->text == "torch._utils _rebuild_tensor_v2") {
    MakeTensor(arguments->items);
  } else if (function->text == "torch._utils _rebuild_parameter") {
    TORCH_CHECK(!arguments->items.empty() && arguments->items[0]->kind == Kind::kTensor,
                "its pickle makes a parameter of something else than a tensor");
    Push(arguments->items[0]);
  } else if (function->text == "torch.jit._pickle restore_type_tag" && !arguments->items.empty()) {
    Push(arguments->items[0]);  // of torch::pickle_save
  } else if (function->text == "collections OrderedDict" && arguments->items.empty()) {
    Push(New(Kind::kDictionary));
  } else {
    TORCH_CHECK(false, "it wants \"", function->text, "\" to be called, which no file of tensors needs; save ",
                "model.state_dict() instead of the model");
  }
}

// (storage, offset, sizes, strides, ...)
void Pickle::MakeTensor(const std::vector<Object*>& arguments) {
  TORCH_CHECK(arguments.size() >= 4 && arguments[0]->kind == Kind::kStorage && arguments[1]->kind == Kind::kNumber &&
                  arguments[2]->items.size() == arguments[3]->items.size(),
              "its pickle describes a tensor in a way that is unknown");
  const at::Tensor& storage = arguments[0]->tensor;
  std::vector<int64_t> sizes, strides;
  bool empty = false;
  double elements = 1;
  // The last element's place, in floating point against overflow.
  double last = static_cast<double>(arguments[1]->number);
  for (size_t i = 0; i < arguments[2]->items.size(); ++i) {
    sizes.push_back(arguments[2]->items[i]->number);
    strides.push_back(arguments[3]->items[i]->number);
    TORCH_CHECK(sizes.back() >= 0 && strides.back() >= 0, "it has a tensor of negative size or stride");
    empty = empty || sizes.back() == 0;
    elements *= static_cast<double>(std::max<int64_t>(sizes.back(), 1));
    last += static_cast<double>(sizes.back() - 1) * static_cast<double>(strides.back());
  }
  TORCH_CHECK(elements < 1e18, "it has a tensor of ", elements, " elements");
  TORCH_CHECK(arguments[1]->number >= 0 && (empty || last < static_cast<double>(storage.numel())),
              "it has a tensor that reaches beyond its storage of ", storage.numel(), " elements");
  Push(New(Kind::kTensor));
  stack_.back()->tensor =
      empty ? at::empty(sizes, storage.options()) : storage.as_strided(sizes, strides, arguments[1]->number);
}

// Every tensor within `object`. `left` bounds what circles can cost: visits, and bytes of the names that they make.
void Collect(const Object& object, const std::string& name, int64_t& left, int depth,
             std::map<std::string, at::Tensor>& found) {
  left -= 1 + static_cast<int64_t>(name.size()) / 8;
  TORCH_CHECK(left > 0 && depth < 100, "its dictionaries contain each other");
  const auto within = [&](const std::string& key) { return name.empty() ? key : name + "." + key; };
  if (object.kind == Kind::kTensor) found[name] = object.tensor;
  for (const auto& [key, value] : object.entries) {
    Collect(*value, within(key->kind == Kind::kNumber ? std::to_string(key->number) : key->text), left, depth + 1,
            found);
  }
  for (size_t i = 0; i < object.items.size(); ++i) {
    Collect(*object.items[i], within(std::to_string(i)), left, depth + 1, found);
  }
}

}  // namespace

std::map<std::string, at::Tensor> ReadPtFile(const std::string& path) {
  try {
    PtArchive archive(path);
    TORCH_CHECK(archive.Has("data.pkl"), "it has no pickle of tensors");
    TORCH_CHECK(!archive.Has("byteorder") || archive.Read("byteorder") == "little", "it is of a big-endian machine");
    Pickle pickle(archive);
    std::map<std::string, at::Tensor> found;
    int64_t left = 10'000'000;
    Collect(pickle.Run(), "", left, 0, found);
    return found;
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "can't read tensors from ", path, ": ", error.what_without_backtrace());
  }
}

}  // namespace cohort::trainer
