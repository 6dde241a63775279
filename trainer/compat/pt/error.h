// How the reader of `.pt` files refuses: by an exception whose text completes "can't read tensors from FILE: ...".
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace cohort::trainer::pt {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The bytes end within a pickle. More of them may make it whole.
class EndsEarly : public Error {
 public:
  using Error::Error;
};

template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <typename... Parts>
[[noreturn]] void Refuse(const Parts&... parts) {
  throw Error(Text(parts...));
}

}  // namespace cohort::trainer::pt
