#include "cohort/comm/check/named_input.h"

namespace cohort::comm {
namespace {

thread_local const NamedInput* current = nullptr;

}  // namespace

NamedInput::NamedInput(const void* input) : input_(input), outer_(current) { current = this; }

NamedInput::~NamedInput() { current = outer_; }

const NamedInput* NamedInput::Of(const void* input) {
  const NamedInput* named = current;
  while (named != nullptr && named->input_ != input) named = named->outer_;
  return named;
}

}  // namespace cohort::comm
