// NamedInput says what the elements of a call's input belong to, such as a parameter's gradient. Errors of --check nan
// show it.
#pragma once

#include <cstddef>
#include <string>

namespace cohort::comm {

// Names the input of the calls that its thread makes from one memory while it lives. Calls that callbacks make
// meanwhile have inputs of their own, and no name. Objects of a thread nest. The cost is a few stores.
class NamedInput {
 public:
  // `input`: where the buffer of the calls begins.
  explicit NamedInput(const void* input);
  virtual ~NamedInput();
  NamedInput(const NamedInput&) = delete;
  NamedInput& operator=(const NamedInput&) = delete;

  // Says for element `element` of the input: "the gradient of layers.3.weight". Empty: nobody knows. It runs
  // within the call, in the caller's thread, and only once a check has found something.
  virtual std::string NameOf(size_t element) const = 0;

  // The innermost one of this thread for that memory; null: there is none.
  static const NamedInput* Of(const void* input);

 private:
  const void* const input_;
  const NamedInput* const outer_;
};

}  // namespace cohort::comm
