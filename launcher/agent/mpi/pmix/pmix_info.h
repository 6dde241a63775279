// A list of named values, as PMIx takes them.
#pragma once

#include <pmix_common.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <utility>
#include <vector>

namespace cohort::launcher {

class PmixInfo {
 public:
  PmixInfo() = default;
  PmixInfo(const PmixInfo&) = delete;  // its values point into it
  PmixInfo& operator=(const PmixInfo&) = delete;

  void Add(const char* key, const std::string& text);
  void AddNumber(const char* key, uint32_t number);
  void AddShort(const char* key, uint16_t number);
  void AddRank(const char* key, uint32_t rank);
  void AddFlag(const char* key);  // true
  void AddProcess(const char* key, const std::string& name, uint32_t rank);
  // A list in this one, which owns it.
  PmixInfo& AddList(const char* key);

  // Valid until the next Add, and as long as this object.
  pmix_info_t* data();
  size_t size() const { return values_.size(); }

 private:
  pmix_value_t& Append(const char* key, pmix_data_type_t type);

  std::vector<pmix_info_t> values_;
  std::list<std::string> texts_;
  std::list<pmix_proc_t> processes_;
  std::list<std::pair<PmixInfo, pmix_data_array_t>> lists_;
};

}  // namespace cohort::launcher
