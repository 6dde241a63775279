// Runs Python's pickles, of every protocol, on objects of its own.
//
// A pickle is a program that may call any function. This machine calls none. Its result of a call is an object that
// says what would have been called, with which arguments. The bytes are not trusted: no number in them is an amount of
// memory, and objects that contain each other are allowed.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cohort/trainer/compat/pt/error.h"

namespace cohort::trainer::pt {

// A value that a pickle makes. Values live as long as their Pickle, since they may refer to each other in circles.
struct Object {
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kBytes,
    kName,  // of a class, a function or a constant
    kTuple,
    kList,
    kSet,
    kDictionary,
    kCall,       // what a call would return, and what was then put into it
    kReference,  // a persistent id: a storage, in files of torch.save
  };
  struct Parts {
    std::vector<Object*> items;                        // of sequences and sets; of a call, what was appended
    std::vector<std::pair<Object*, Object*>> entries;  // of dictionaries; of a call, what was set
    Object* callee = nullptr;                          // of a call; of a reference, its id
    Object* arguments = nullptr;                       // of a call: a tuple as a rule
    Object* keywords = nullptr;                        // of a call, or null
    Object* state = nullptr;                           // as __setstate__ would get it, or null
  };

  Kind kind = Kind::kNone;
  int64_t number = 0;  // kBool and kInt
  double real = 0;     // kFloat
  // kText in UTF-8, kBytes; kName as "module.name". An integer of more than 64 bits: its digits, or its little-endian
  // bytes in protocol 2 and later.
  std::string_view text;
  std::unique_ptr<Parts> parts;  // null where there are none

  // Empty where there are none.
  const std::vector<Object*>& items() const;
  const std::vector<std::pair<Object*, Object*>>& entries() const;
  // The items of a call's arguments.
  const std::vector<Object*>& arguments() const;
};

// The unread bytes of a pickle.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}
  size_t place() const { return place_; }
  std::string_view Bytes(uint64_t count) {
    if (count > bytes_.size() - place_) throw EndsEarly("its pickle ends too early");
    place_ += count;
    return bytes_.substr(place_ - count, count);
  }
  template <typename T>
  T Number() {  // little-endian, as this machine
    T value;
    std::memcpy(&value, Bytes(sizeof value).data(), sizeof value);
    return value;
  }
  // Without its end.
  std::string_view Line() {
    const size_t end = bytes_.find('\n', place_);
    if (end == std::string_view::npos) throw EndsEarly("its pickle ends too early");
    const std::string_view line = bytes_.substr(place_, end - place_);
    place_ = end + 1;
    return line;
  }

 private:
  std::string_view bytes_;
  size_t place_ = 0;
};

class Pickle {
 public:
  // `program` outlives this and the objects.
  explicit Pickle(std::string_view program);

  // Runs the next pickle of the program and returns what it makes. Throws Error.
  const Object& Run();
  // How much of the program was read.
  size_t consumed() const { return cursor_.place(); }
  // All that were made, in order.
  const std::vector<const Object*>& references() const { return references_; }

 private:
  Object* New(Object::Kind kind);
  Object::Parts& PartsOf(Object& object);
  void Push(Object* object) { stack_.push_back(object); }
  void PushInt(int64_t number);
  void PushText(Object::Kind kind, std::string_view text);
  // The same for a text that is not in the program.
  void PushMade(Object::Kind kind, std::string text);
  void PushName(std::string_view module, std::string_view name);
  void PushSequence(Object::Kind kind, std::vector<Object*> items);
  void PushCall(Object* callee, Object* arguments, Object* keywords = nullptr);
  Object* Pop();
  Object* Top();
  std::vector<Object*> PopToMark();
  void Append(const std::vector<Object*>& items);
  void SetItems(const std::vector<Object*>& items);
  void Build();
  void Remember(uint64_t index);
  void Get(uint64_t index);

  void PushLong(uint64_t size);
  void PushDecimal(std::string_view line);
  bool DoNumber(uint8_t operation);
  bool DoText(uint8_t operation);
  bool DoBytes(uint8_t operation);
  bool DoContainer(uint8_t operation);
  bool DoCall(uint8_t operation);
  bool DoStack(uint8_t operation);

  Cursor cursor_;
  std::deque<Object> objects_;
  std::deque<std::string> texts_;  // that are not in the program as they are
  std::vector<Object*> stack_;
  std::vector<const Object*> references_;
  std::vector<size_t> marks_;  // sizes of the stack
  std::unordered_map<uint64_t, Object*> memo_;
  // Values of which one is enough.
  Object none_, true_, false_, empty_tuple_;
  std::vector<Object> small_;  // the integers 0 to 255
};

}  // namespace cohort::trainer::pt
