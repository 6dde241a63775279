// Lines that ranks print after something has failed: held back until the cause is told, so that it comes first.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "cohort/launcher/front_end/output_printer.h"

namespace cohort::launcher {

class HeldOutput {
 public:
  // `printer` must outlive this.
  explicit HeldOutput(OutputPrinter* printer) : printer_(printer) {}

  // False once released: the line is the caller's to print.
  bool holding() const { return holding_; }
  // Keeps a line, its newline included; more than 8 MiB are released.
  void Keep(int fd, std::string_view line);
  // Prints what is kept and holds nothing more.
  void Release();
  // Holds again, for another failure.
  void Rearm() { holding_ = true; }

 private:
  static constexpr size_t kMaxBytes = 8u << 20;

  OutputPrinter* printer_;
  std::string lines_;  // each begins with its descriptor
  bool holding_ = true;
};

}  // namespace cohort::launcher
