// A value that a rank has published under a name, as text that any node keeps.
#pragma once

#include <pmix_common.h>

#include <optional>
#include <string>

namespace cohort::launcher {

class PublishedValue {
 public:
  PublishedValue() = default;
  PublishedValue(const PublishedValue&) = delete;  // its data point into it
  PublishedValue& operator=(const PublishedValue&) = delete;

  // The text for that value of that rank. Nothing for types that MPI libraries don't publish.
  static std::optional<std::string> Write(const pmix_proc_t& rank, const pmix_value_t& value);
  // Takes such a text. False: it is none.
  bool Parse(const std::string& name, const std::string& text);
  // As the library takes it; as long as this object lives.
  pmix_pdata_t* data() { return &data_; }

 private:
  std::string value_;
  pmix_pdata_t data_{};
};

}  // namespace cohort::launcher
