#include "cohort/trainer/compat/pt/contents.h"

#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cohort/trainer/compat/pt/children.h"
#include "cohort/trainer/compat/pt/object_text.h"

namespace cohort::trainer::pt {
namespace {

using Kind = Object::Kind;

constexpr int kDeepest = 1000;
// Bounds the visits that values shared again and again can cost, and the bytes of the names that they make.
constexpr int64_t kMostWork = 10'000'000;

// All values that are tensors or storages, or from which one is reached. Needs no recursion and follows circles.
std::unordered_set<const Object*> HoldersOfTensors(const Object& root) {
  std::unordered_map<const Object*, std::vector<const Object*>> holders;
  std::vector<const Object*> left = {&root}, found;
  holders[&root];
  while (!left.empty()) {
    const Object* object = left.back();
    left.pop_back();
    if (IsTensor(Unwrapped(*object)) || IsStorage(*object)) found.push_back(object);
    for (const Child& child : ChildrenOf(*object)) {
      if (child.value->parts == nullptr) continue;
      const auto [known, is_new] = holders.try_emplace(child.value);
      known->second.push_back(object);
      if (is_new) left.push_back(child.value);
    }
  }
  std::unordered_set<const Object*> holding(found.begin(), found.end());
  while (!found.empty()) {
    const Object* object = found.back();
    found.pop_back();
    for (const Object* holder : holders[object]) {
      if (holding.insert(holder).second) found.push_back(holder);
    }
  }
  return holding;
}

class Walk {
 public:
  explicit Walk(const Object& root) : holding_(HoldersOfTensors(root)) { Visit(root, 0); }
  Contents Result() &&;

 private:
  struct Found {
    const Object* object = nullptr;
    std::string path;
  };

  void Visit(const Object& wrapped, int depth);
  void VisitChild(const Child& child, int depth);
  void Keep(const Object& tensor);
  void LeaveOut(const std::string& type) { contents_.left_out.emplace(name_, type); }
  void RefuseUnknown(const Object& call) const;
  void Spend(size_t bytes);
  void FindBeside(const Object& module, int depth);

  const std::unordered_set<const Object*> holding_;
  std::unordered_set<const Object*> around_;  // the value at hand is in these
  std::string name_, path_;                   // of the value at hand
  std::unordered_map<std::string, Found> found_;
  std::unordered_set<const Object*> kept_;
  std::unordered_set<const Object*> known_beside_;
  std::vector<std::pair<const Object*, std::string>> beside_;  // tensors that modules hold beside their state_dict()
  Contents contents_;
  int64_t left_ = kMostWork;
};

// Functions of PyTorch and classes of its distributed tensors change the tensors that they are given.
void Walk::RefuseUnknown(const Object& call) const {
  const std::string_view type = InstanceOf(call).type;
  if (!type.starts_with("torch.")) return;
  const char first = type[type.rfind('.') + 1];
  const bool is_function = first == '_' || (first >= 'a' && first <= 'z');
  if (is_function || type.starts_with("torch.distributed.")) {
    Refuse("obj", path_, " holds tensors in a ", type, ", which is not understood; save plain tensors in Python");
  }
}

void Walk::Keep(const Object& tensor) {
  const auto [known, is_new] = found_.try_emplace(name_, Found{.object = &tensor, .path = path_});
  if (!is_new) {
    if (known->second.object == &tensor) return;
    Refuse("obj", known->second.path, " and obj", path_, " would both have the name \"", name_,
           "\"; rename one of their keys in Python");
  }
  kept_.insert(&tensor);
  try {
    contents_.tensors.emplace(name_, ReadTensor(tensor));
  } catch (const Error& error) {
    Refuse("obj", path_, ": ", error.what());
  }
}

void Walk::Spend(size_t bytes) {
  left_ -= 1 + static_cast<int64_t>(bytes) / 16;
  if (left_ < 0) Refuse("its values contain each other in too many ways");
}

// Looks for tensors in everything that the module's attributes hold but its state_dict() does not. Each value is looked
// at once. Needs no recursion.
void Walk::FindBeside(const Object& module, int depth) {
  std::vector<std::pair<const Object*, std::string>> left;
  const auto add = [&](const std::vector<Child>& children, const std::string& prefix) {
    for (const Child& child : children) {
      const Object& value = Unwrapped(*child.value);
      if (value.parts == nullptr || !known_beside_.insert(&value).second) continue;
      left.emplace_back(&value, prefix + child.Name());
      Spend(left.back().second.size());
    }
  };
  add(OtherAttributesOf(module), depth > 0 ? name_ + "." : name_);
  while (!left.empty()) {
    const auto [object, name] = std::move(left.back());
    left.pop_back();
    if (IsTensor(*object) || IsStorage(*object)) beside_.emplace_back(object, name);
    add(ChildrenOf(*object), name + ".");
    add(OtherAttributesOf(*object), name + ".");
  }
}

Contents Walk::Result() && {
  for (const auto& [tensor, name] : beside_) {
    if (kept_.count(tensor) == 0) contents_.left_out.emplace(name, "torch.Tensor, which state_dict() leaves out");
  }
  return std::move(contents_);
}

void Walk::VisitChild(const Child& child, int depth) {
  const size_t name_bytes = name_.size(), path_bytes = path_.size();
  if (depth > 0) name_ += '.';
  name_ += child.Name();
  path_ += child.Path();
  Spend(name_.size() + path_.size());
  if (holding_.count(child.value) > 0) {
    Visit(*child.value, depth + 1);
  } else {
    LeaveOut(TypeOf(*child.value));
  }
  name_.resize(name_bytes);
  path_.resize(path_bytes);
}

void Walk::Visit(const Object& wrapped, int depth) {
  const Object& object = Unwrapped(wrapped);
  if (depth > kDeepest) Refuse("its values are nested more than ", kDeepest, " deep");
  if (holding_.count(&wrapped) == 0 || object.kind == Kind::kReference) {
    LeaveOut(TypeOf(object));
    return;
  }
  if (!around_.insert(&object).second) return;  // in a circle, and visited already
  const bool is_tensor = IsTensor(object), is_module = IsModule(object);
  if (is_tensor) {
    Keep(object);
  } else if (object.kind == Kind::kCall && !is_module) {
    RefuseUnknown(object);
  }
  const bool is_ordered = !is_tensor && object.kind == Kind::kCall && CalleeOf(object) == "collections.OrderedDict";
  for (const Child& child : ChildrenOf(object)) {
    const bool about_modules = is_ordered && child.attribute && child.key->text == "_metadata";
    if (!about_modules && (!is_tensor || holding_.count(child.value) > 0)) VisitChild(child, depth);
  }
  if (is_module) FindBeside(object, depth);
  around_.erase(&object);
}

}  // namespace

Contents TensorsOf(const Object& root) { return Walk(root).Result(); }

}  // namespace cohort::trainer::pt
