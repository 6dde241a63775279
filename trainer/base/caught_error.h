// Handles the exceptions that a `catch (...)` of a gradient hook has caught. Hooks run libtorch's, users' and the
// standard library's code. Its exceptions must reach the other ranks, and leave backward() as an error of the trainer.
#pragma once

#include <string>

namespace cohort::trainer {

// Returns the exception's text, without libtorch's backtrace. Only within a catch block.
std::string TextOfCaught();
// Throws it again: as it is if it is a c10::Error (DistributedError is one), else as a DistributedError (kUnknown) with
// its text after `context`. Only within a catch block.
[[noreturn]] void ThrowCaught(const std::string& context);

}  // namespace cohort::trainer
