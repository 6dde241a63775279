#pragma once

#include <functional>
#include <string>

#include "c10/util/Exception.h"

namespace cohort::trainer {

// The words of the error that `work` throws, without the stack; empty where it throws none.
inline std::string ErrorOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace cohort::trainer
