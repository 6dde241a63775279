#include "cohort/trainer/compat/pt/children.h"

#include <set>
#include <string_view>
#include <unordered_map>

#include "cohort/trainer/compat/pt/object_text.h"
#include "cohort/trainer/compat/pt/stored_tensor.h"

namespace cohort::trainer::pt {
namespace {

using Kind = Object::Kind;

void AddItems(const std::vector<Object*>& items, std::vector<Child>& children) {
  for (size_t i = 0; i < items.size(); ++i) children.push_back({.value = items[i], .place = i});
}

void AddEntries(const std::vector<std::pair<Object*, Object*>>& entries, bool attributes,
                std::vector<Child>& children) {
  for (const auto& [key, value] : entries) children.push_back({.value = value, .key = key, .attribute = attributes});
}

// OrderedDict([[key, value], ...]), as Python 2 writes it.
void AddPairs(const Object& pairs, std::vector<Child>& children) {
  for (const Object* pair : pairs.items()) {
    if (pair->items().size() == 2) children.push_back({.value = pair->items()[1], .key = pair->items()[0]});
  }
}

// As object.__setstate__ takes it: attributes, or a pair of attributes and slots. Other states are an attribute
// "state".
void AddState(const Object& state, std::vector<Child>& children) {
  static const Object kState = [] {
    Object name;
    name.kind = Kind::kText;
    name.text = "state";
    return name;
  }();
  const std::vector<Object*>& items = state.items();
  const bool slots = state.kind == Kind::kTuple && items.size() == 2 && items[1]->kind == Kind::kDictionary &&
                     (items[0]->kind == Kind::kDictionary || items[0]->kind == Kind::kNone);
  if (slots) {
    for (const Object* part : items) AddEntries(part->entries(), /*attributes=*/true, children);
  } else if (state.kind == Kind::kDictionary) {
    AddEntries(state.entries(), /*attributes=*/true, children);
  } else {
    children.push_back({.value = &state, .key = &kState, .attribute = true});
  }
}

void AddArguments(const Instance& made, std::vector<Child>& children) {
  static const std::set<std::string_view> kSequences = {"builtins.set",   "builtins.frozenset", "builtins.list",
                                                        "builtins.tuple", "collections.deque",  "torch.Size"};
  const Object* first = made.arguments.empty() ? nullptr : made.arguments[0];
  if (made.type == "collections.defaultdict") {
    for (size_t i = 1; i < made.arguments.size(); ++i) {  // behind the factory
      AddEntries(made.arguments[i]->entries(), /*attributes=*/false, children);
    }
  } else if (made.type == "collections.OrderedDict" && first != nullptr && !first->items().empty()) {
    AddPairs(*first, children);
  } else if (made.arguments.size() == 1 && first->kind == Kind::kDictionary) {  // a Counter, a subclass of dict
    AddEntries(first->entries(), /*attributes=*/false, children);
  } else if (kSequences.count(made.type) > 0 && first != nullptr) {
    AddItems(first->items(), children);
  } else {
    for (size_t i = 0; i < made.arguments.size(); ++i) children.push_back({.value = made.arguments[i], .place = i});
  }
}

// The value of a text's entry, or null.
const Object* Entry(const Object& dictionary, std::string_view key) {
  for (const auto& [name, value] : dictionary.entries()) {
    if (name->kind == Kind::kText && name->text == key) return value;
  }
  return nullptr;
}

const Object* StateOfModule(const Object& object) {
  if (object.kind != Kind::kCall || object.parts->state == nullptr) return nullptr;
  const Object* state = object.parts->state;
  return Entry(*state, "_parameters") != nullptr && Entry(*state, "_modules") != nullptr ? state : nullptr;
}

std::set<std::string_view> PassingBuffers(const Object& state) {
  std::set<std::string_view> names;
  const Object* passing = Entry(state, "_non_persistent_buffers_set");
  if (passing == nullptr) return names;
  for (const Child& child : ChildrenOf(*passing)) names.insert(child.value->text);
  return names;
}

std::vector<Child> ChildrenOfModule(const Object& state) {
  std::vector<Child> children;
  for (const std::string_view part : {"_parameters", "_buffers", "_modules"}) {
    const Object* held = Entry(state, part);
    if (held == nullptr) continue;
    const std::set<std::string_view> passing =
        part == "_buffers" ? PassingBuffers(state) : std::set<std::string_view>();
    for (const Child& child : ChildrenOf(*held)) {
      const bool is_none = child.value->kind == Kind::kNone;  // a layer without bias
      if (child.key != nullptr && !child.attribute && !is_none && passing.count(child.key->text) == 0) {
        children.push_back(child);
      }
    }
  }
  return children;
}

// Python's dictionaries keep a key once, with its last value. Numbers that are equal are one key.
void KeepLast(std::vector<Child>& children) {
  std::unordered_map<std::string, size_t> last;
  std::vector<Child> kept;
  for (const Child& child : children) {
    if (child.key == nullptr) {
      kept.push_back(child);
      continue;
    }
    const bool is_bool = child.key->kind == Kind::kBool;
    const std::string key = (child.attribute ? "." : "") +
                            (is_bool ? std::to_string(child.key->number) : Printed(*child.key)) +
                            (child.key->kind == Kind::kText ? std::string(child.key->text) : "");
    const auto [found, is_new] = last.emplace(key, kept.size());
    if (is_new) {
      kept.push_back(child);
    } else {
      kept[found->second] = child;
    }
  }
  children = std::move(kept);
}

}  // namespace

std::string Child::Name() const { return key == nullptr ? std::to_string(place) : KeyText(*key); }

std::string Child::Path() const {
  if (key == nullptr) return "[" + std::to_string(place) + "]";
  return attribute ? "." + KeyText(*key) : "[" + Printed(*key) + "]";
}

std::vector<Child> ChildrenOf(const Object& wrapped) {
  const Object& object = Unwrapped(wrapped);
  std::vector<Child> children;
  if (object.parts == nullptr || object.kind == Kind::kReference) return children;
  if (IsTensor(object)) {
    const Object* attributes = AttributesOfTensor(object);
    if (attributes != nullptr && attributes->kind != Kind::kNone) AddState(*attributes, children);
    return children;
  }
  if (const Object* state = StateOfModule(object)) return ChildrenOfModule(*state);
  if (object.kind == Kind::kCall) AddArguments(InstanceOf(object), children);
  if (object.kind == Kind::kCall && object.parts->keywords != nullptr) {
    AddEntries(object.parts->keywords->entries(), /*attributes=*/true, children);
  }
  AddItems(object.items(), children);
  AddEntries(object.entries(), /*attributes=*/false, children);
  if (object.parts->state != nullptr) AddState(*object.parts->state, children);
  if (!object.entries().empty() || object.kind == Kind::kCall) KeepLast(children);
  return children;
}

bool IsModule(const Object& object) { return StateOfModule(object) != nullptr; }

std::vector<Child> OtherAttributesOf(const Object& module) {
  std::vector<Child> children;
  const Object* state = StateOfModule(module);
  if (state == nullptr) return children;
  static const std::set<std::string_view> kInStateDict = {"_parameters", "_buffers", "_modules"};
  for (const auto& [key, value] : state->entries()) {
    if (kInStateDict.count(key->text) == 0) children.push_back({.value = value, .key = key, .attribute = true});
  }
  const std::set<std::string_view> passing = PassingBuffers(*state);
  if (const Object* buffers = Entry(*state, "_buffers"); buffers != nullptr && !passing.empty()) {
    for (const Child& child : ChildrenOf(*buffers)) {
      if (child.key != nullptr && passing.count(child.key->text) > 0) children.push_back(child);
    }
  }
  return children;
}

}  // namespace cohort::trainer::pt
