// NamedInput says what the elements of a call's input belong to, such as a parameter's gradient. Errors of --check nan
// show it.
#pragma once

#include <cstddef>
#include <string>

namespace cohort::comm {

// Names the inputs of the calls that its thread makes while it lives. Objects of a thread nest. The cost is two stores.
class NamedInput {
 public:
  NamedInput();
  virtual ~NamedInput();
  NamedInput(const NamedInput&) = delete;
  NamedInput& operator=(const NamedInput&) = delete;

  // Says for element `element` of the input: "the gradient of layers.3.weight". Empty: nobody knows. It runs
  // within the call, in the caller's thread, and only once a check has found something.
  virtual std::string NameOf(size_t element) const = 0;

  // The innermost one of this thread; null: there is none.
  static const NamedInput* Current();

 private:
  const NamedInput* const outer_;
};

}  // namespace cohort::comm
