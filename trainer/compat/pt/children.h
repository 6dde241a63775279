// The contents of a value of a pickle: the items of lists, the entries of dictionaries, the attributes of objects.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/trainer/compat/pt/pickle.h"

namespace cohort::trainer::pt {

struct Child {
  const Object* value = nullptr;
  const Object* key = nullptr;  // or null: `place` counts
  size_t place = 0;
  bool attribute = false;  // `key` is the name of one

  // As a part of a tensor's name.
  std::string Name() const;
  // As Python reaches it: "['a']", "[0]", ".a".
  std::string Path() const;
};

// Everything that a value holds, for a module the entries of its state_dict(): parameters, buffers that persist, and
// modules. A call that is not known holds its arguments, and what was put into its result.
std::vector<Child> ChildrenOf(const Object& object);

bool IsModule(const Object& object);
// The attributes of a module that are not in its state_dict(), for their names.
std::vector<Child> OtherAttributesOf(const Object& module);

}  // namespace cohort::trainer::pt
