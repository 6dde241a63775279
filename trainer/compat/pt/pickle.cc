#include "cohort/trainer/compat/pt/pickle.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>

#include "cohort/trainer/compat/pt/pickle_text.h"

namespace cohort::trainer::pt {
namespace {

using Kind = Object::Kind;

// An operation of one byte makes an object of fifty. Files of large models have some hundred thousand.
constexpr size_t kMostObjects = 10'000'000;

}  // namespace

const std::vector<Object*>& Object::items() const {
  static const std::vector<Object*> kEmpty;
  return parts == nullptr ? kEmpty : parts->items;
}

const std::vector<std::pair<Object*, Object*>>& Object::entries() const {
  static const std::vector<std::pair<Object*, Object*>> kEmpty;
  return parts == nullptr ? kEmpty : parts->entries;
}

const std::vector<Object*>& Object::arguments() const {
  static const std::vector<Object*> kEmpty;
  return parts == nullptr || parts->arguments == nullptr ? kEmpty : parts->arguments->items();
}

Pickle::Pickle(std::string_view program) : cursor_(program), small_(256) {
  true_.kind = false_.kind = Kind::kBool;
  true_.number = 1;
  empty_tuple_.kind = Kind::kTuple;
  for (size_t i = 0; i < small_.size(); ++i) {
    small_[i].kind = Kind::kInt;
    small_[i].number = static_cast<int64_t>(i);
  }
}

const Object& Pickle::Run() {
  stack_.clear();
  marks_.clear();
  memo_.clear();
  while (true) {
    const auto operation = cursor_.Number<uint8_t>();
    if (operation == '.') return *Pop();
    if (!DoNumber(operation) && !DoText(operation) && !DoBytes(operation) && !DoContainer(operation) &&
        !DoCall(operation) && !DoStack(operation)) {
      Refuse("its pickle has the unknown operation ", static_cast<int>(operation));
    }
  }
}

Object* Pickle::New(Kind kind) {
  if (objects_.size() >= kMostObjects) {
    Refuse("its pickle makes more than ", kMostObjects, " objects; save long lists of numbers as tensors");
  }
  objects_.emplace_back().kind = kind;
  return &objects_.back();
}

Object::Parts& Pickle::PartsOf(Object& object) {
  if (object.parts == nullptr) object.parts = std::make_unique<Object::Parts>();
  return *object.parts;
}

void Pickle::PushInt(int64_t number) {
  if (number >= 0 && number < static_cast<int64_t>(small_.size())) {
    Push(&small_[static_cast<size_t>(number)]);
    return;
  }
  Push(New(Kind::kInt));
  stack_.back()->number = number;
}

void Pickle::PushText(Kind kind, std::string_view text) {
  Push(New(kind));
  stack_.back()->text = text;
}

void Pickle::PushMade(Kind kind, std::string text) { PushText(kind, texts_.emplace_back(std::move(text))); }

// Python 2 had other names for two modules.
void Pickle::PushName(std::string_view module, std::string_view name) {
  if (module == "__builtin__") module = "builtins";
  if (module == "copy_reg") module = "copyreg";
  PushMade(Kind::kName, Text(module, ".", name));
}

void Pickle::PushSequence(Kind kind, std::vector<Object*> items) {
  if (kind == Kind::kTuple && items.empty()) {
    Push(&empty_tuple_);
    return;
  }
  Object* sequence = New(kind);
  if (!items.empty()) PartsOf(*sequence).items = std::move(items);
  Push(sequence);
}

void Pickle::PushCall(Object* callee, Object* arguments, Object* keywords) {
  Object* call = New(Kind::kCall);
  Object::Parts& parts = PartsOf(*call);
  parts.callee = callee;
  parts.arguments = arguments;
  parts.keywords = keywords;
  Push(call);
}

Object* Pickle::Pop() {
  Object* object = Top();
  stack_.pop_back();
  return object;
}

Object* Pickle::Top() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) Refuse("its pickle takes more than it made");
  return stack_.back();
}

std::vector<Object*> Pickle::PopToMark() {
  if (marks_.empty()) Refuse("its pickle lacks a mark");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<Object*> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

void Pickle::Append(const std::vector<Object*>& items) {
  Object* target = Top();
  if (target->kind != Kind::kList && target->kind != Kind::kSet && target->kind != Kind::kCall) {
    Refuse("its pickle puts items into a value that holds none");
  }
  std::vector<Object*>& held = PartsOf(*target).items;
  held.insert(held.end(), items.begin(), items.end());
}

void Pickle::SetItems(const std::vector<Object*>& items) {
  if (items.size() % 2 != 0) Refuse("its pickle has a key without a value");
  Object* target = Top();
  if (target->kind != Kind::kDictionary && target->kind != Kind::kCall) {
    Refuse("its pickle puts keys into a value that holds none");
  }
  for (size_t i = 0; i < items.size(); i += 2) PartsOf(*target).entries.emplace_back(items[i], items[i + 1]);
}

void Pickle::Build() {
  Object* state = Pop();
  Object* target = Top();
  if (target->kind != Kind::kCall && target->kind != Kind::kDictionary && target->kind != Kind::kList &&
      target->kind != Kind::kSet) {
    Refuse("its pickle sets attributes of a value that has none");
  }
  PartsOf(*target).state = state;
}

// Python remembers an object once.
void Pickle::Remember(uint64_t index) {
  memo_[index] = Top();
  if (memo_.size() > kMostObjects) Refuse("its pickle remembers more than ", kMostObjects, " objects");
}

void Pickle::Get(uint64_t index) {
  const auto found = memo_.find(index);
  if (found == memo_.end()) Refuse("its pickle refers to a value that it has not made");
  Push(found->second);
}

void Pickle::PushLong(uint64_t size) {
  const std::string_view bytes = cursor_.Bytes(size);
  if (size > sizeof(int64_t)) {
    PushText(Kind::kInt, bytes);
    return;
  }
  uint64_t value = size > 0 && (bytes[size - 1] & 0x80) != 0 ? ~uint64_t{0} : 0;
  if (size > 0) std::memcpy(&value, bytes.data(), size);
  PushInt(static_cast<int64_t>(value));
}

void Pickle::PushDecimal(std::string_view line) {
  if (line == "00" || line == "01") {  // False and True of protocol 0
    Push(line == "01" ? &true_ : &false_);
    return;
  }
  if (line.ends_with('L')) line.remove_suffix(1);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  if (error == std::errc::result_out_of_range) {
    PushText(Kind::kInt, line);
  } else if (error == std::errc() && end == line.data() + line.size()) {
    PushInt(number);
  } else {
    Refuse("its pickle has an integer that is none");
  }
}

bool Pickle::DoNumber(uint8_t operation) {
  switch (operation) {
    case 'N':
      Push(&none_);
      return true;
    case 0x88:
    case 0x89:
      Push(operation == 0x88 ? &true_ : &false_);
      return true;
    case 'K':
      PushInt(cursor_.Number<uint8_t>());
      return true;
    case 'M':
      PushInt(cursor_.Number<uint16_t>());
      return true;
    case 'J':
      PushInt(cursor_.Number<int32_t>());
      return true;
    case 0x8a:
      PushLong(cursor_.Number<uint8_t>());
      return true;
    case 0x8b:
      PushLong(cursor_.Number<uint32_t>());
      return true;
    case 'I':
    case 'L':
      PushDecimal(cursor_.Line());
      return true;
    case 'F':
      Push(New(Kind::kFloat));
      stack_.back()->real = std::strtod(std::string(cursor_.Line()).c_str(), nullptr);
      return true;
    case 'G': {  // big-endian
      uint64_t bits = 0;
      for (const char byte : cursor_.Bytes(8)) bits = bits << 8 | static_cast<uint8_t>(byte);
      Push(New(Kind::kFloat));
      stack_.back()->real = std::bit_cast<double>(bits);
      return true;
    }
    default:
      return false;
  }
}

bool Pickle::DoText(uint8_t operation) {
  switch (operation) {
    case 0x8c:
    case 'U':  // a str of Python 2
      PushText(Kind::kText, cursor_.Bytes(cursor_.Number<uint8_t>()));
      return true;
    case 'X':
    case 'T':  // a str of Python 2
      PushText(Kind::kText, cursor_.Bytes(cursor_.Number<uint32_t>()));
      return true;
    case 0x8d:
      PushText(Kind::kText, cursor_.Bytes(cursor_.Number<uint64_t>()));
      return true;
    case 'S':
      PushMade(Kind::kText, UnquotedText(cursor_.Line()));
      return true;
    case 'V':
      PushMade(Kind::kText, UnescapedText(cursor_.Line()));
      return true;
    case 'c': {
      const std::string_view module = cursor_.Line();
      PushName(module, cursor_.Line());
      return true;
    }
    case 0x93: {
      const Object* name = Pop();
      const Object* module = Pop();
      PushName(module->text, name->text);
      return true;
    }
    case 0x82:
    case 0x83:
    case 0x84: {  // a number that programs agree on in copyreg
      const uint32_t code = operation == 0x82   ? cursor_.Number<uint8_t>()
                            : operation == 0x83 ? cursor_.Number<uint16_t>()
                                                : cursor_.Number<uint32_t>();
      PushName("copyreg", Text("extension ", code));
      return true;
    }
    default:
      return false;
  }
}

bool Pickle::DoBytes(uint8_t operation) {
  switch (operation) {
    case 'C':
      PushText(Kind::kBytes, cursor_.Bytes(cursor_.Number<uint8_t>()));
      return true;
    case 'B':
      PushText(Kind::kBytes, cursor_.Bytes(cursor_.Number<uint32_t>()));
      return true;
    case 0x8e:
    case 0x96:  // a bytearray
      PushText(Kind::kBytes, cursor_.Bytes(cursor_.Number<uint64_t>()));
      return true;
    case 0x97:  // bytes that are not in the file
      PushText(Kind::kBytes, "");
      return true;
    case 0x98:
      Top();
      return true;
    default:
      return false;
  }
}

bool Pickle::DoContainer(uint8_t operation) {
  switch (operation) {
    case ')':
      Push(&empty_tuple_);
      return true;
    case ']':
      Push(New(Kind::kList));
      return true;
    case '}':
      Push(New(Kind::kDictionary));
      return true;
    case 0x8f:
      Push(New(Kind::kSet));
      return true;
    case 't':
      PushSequence(Kind::kTuple, PopToMark());
      return true;
    case 'l':
      PushSequence(Kind::kList, PopToMark());
      return true;
    case 0x91:
      PushSequence(Kind::kSet, PopToMark());
      return true;
    case 0x85:
    case 0x86:
    case 0x87: {
      std::vector<Object*> items(operation - 0x84);
      for (size_t i = items.size(); i > 0; --i) items[i - 1] = Pop();
      PushSequence(Kind::kTuple, std::move(items));
      return true;
    }
    case 'd': {
      const std::vector<Object*> items = PopToMark();
      Push(New(Kind::kDictionary));
      SetItems(items);
      return true;
    }
    case 's': {
      Object* value = Pop();
      Object* key = Pop();
      SetItems({key, value});
      return true;
    }
    case 'u':
      SetItems(PopToMark());
      return true;
    case 'a':
      Append({Pop()});
      return true;
    case 'e':
    case 0x90:
      Append(PopToMark());
      return true;
    default:
      return false;
  }
}

bool Pickle::DoCall(uint8_t operation) {
  switch (operation) {
    case 'R':
    case 0x81: {  // a class, as a function
      Object* arguments = Pop();
      PushCall(Pop(), arguments);
      return true;
    }
    case 0x92: {
      Object* keywords = Pop();
      Object* arguments = Pop();
      PushCall(Pop(), arguments, keywords);
      return true;
    }
    case 'i':
    case 'o': {  // instances, in protocols 0 and 1
      if (operation == 'i') {
        const std::string_view module = cursor_.Line();
        PushName(module, cursor_.Line());
        Object* callee = Pop();
        PushSequence(Kind::kTuple, PopToMark());
        PushCall(callee, Pop());
        return true;
      }
      std::vector<Object*> items = PopToMark();
      if (items.empty()) Refuse("its pickle makes an instance of no class");
      Object* callee = items.front();
      items.erase(items.begin());
      PushSequence(Kind::kTuple, std::move(items));
      PushCall(callee, Pop());
      return true;
    }
    case 'b':
      Build();
      return true;
    case 'P':
    case 'Q': {
      if (operation == 'P') PushText(Kind::kText, cursor_.Line());
      Object* id = Pop();
      Push(New(Kind::kReference));
      PartsOf(*stack_.back()).callee = id;
      references_.push_back(stack_.back());
      return true;
    }
    default:
      return false;
  }
}

bool Pickle::DoStack(uint8_t operation) {
  const auto index_of = [](std::string_view line) { return std::strtoull(std::string(line).c_str(), nullptr, 10); };
  switch (operation) {
    case 0x80:  // protocol
      cursor_.Bytes(1);
      return true;
    case 0x95:  // frame
      cursor_.Bytes(8);
      return true;
    case '(':
      marks_.push_back(stack_.size());
      return true;
    case '0':
      if (!marks_.empty() && stack_.size() == marks_.back()) {
        marks_.pop_back();
      } else {
        Pop();
      }
      return true;
    case '1':
      PopToMark();
      return true;
    case '2':
      Push(Top());
      return true;
    case 'p':
      Remember(index_of(cursor_.Line()));
      return true;
    case 'q':
      Remember(cursor_.Number<uint8_t>());
      return true;
    case 'r':
      Remember(cursor_.Number<uint32_t>());
      return true;
    case 0x94:
      Remember(memo_.size());
      return true;
    case 'g':
      Get(index_of(cursor_.Line()));
      return true;
    case 'h':
      Get(cursor_.Number<uint8_t>());
      return true;
    case 'j':
      Get(cursor_.Number<uint32_t>());
      return true;
    default:
      return false;
  }
}

}  // namespace cohort::trainer::pt
