#include "cohort/comm/check/named_input.h"

namespace cohort::comm {
namespace {

thread_local const NamedInput* current = nullptr;

}  // namespace

NamedInput::NamedInput() : outer_(current) { current = this; }

NamedInput::~NamedInput() { current = outer_; }

const NamedInput* NamedInput::Current() { return current; }

}  // namespace cohort::comm
