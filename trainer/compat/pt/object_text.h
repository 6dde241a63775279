// The names of values of a pickle: their types, and their texts as keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cohort/trainer/compat/pt/pickle.h"

namespace cohort::trainer::pt {

// "module.name" of what a call calls, or of the class that a reference of an old file stands for; else empty.
std::string_view CalleeOf(const Object& object);

// A call, seen as making an instance of a class. The functions that pickles name instead of a class are seen through.
struct Instance {
  std::string_view type;                 // "argparse.Namespace"
  std::vector<const Object*> arguments;  // of the class
};
Instance InstanceOf(const Object& call);

// "numpy.float64", "argparse.Namespace", "int", "torch.FloatStorage". A value that is a name, such as torch.float32, is
// its own type.
std::string TypeOf(const Object& object);

// A key as a part of a tensor's name: a text as it is, anything else as Python prints it, in bounded length.
std::string KeyText(const Object& key);
// A key as Python prints it, with quotes around texts.
std::string Printed(const Object& key);

}  // namespace cohort::trainer::pt
