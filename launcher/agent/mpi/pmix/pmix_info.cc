#include "cohort/launcher/agent/mpi/pmix/pmix_info.h"

#include <cstring>

namespace cohort::launcher {

pmix_value_t& PmixInfo::Append(const char* key, pmix_data_type_t type) {
  pmix_info_t& info = values_.emplace_back();
  std::memset(&info, 0, sizeof info);
  std::strncpy(info.key, key, sizeof info.key - 1);
  info.value.type = type;
  return info.value;
}

void PmixInfo::Add(const char* key, const std::string& text) {
  Append(key, PMIX_STRING).data.string = texts_.emplace_back(text).data();
}

void PmixInfo::AddNumber(const char* key, uint32_t number) { Append(key, PMIX_UINT32).data.uint32 = number; }

void PmixInfo::AddShort(const char* key, uint16_t number) { Append(key, PMIX_UINT16).data.uint16 = number; }

void PmixInfo::AddRank(const char* key, uint32_t rank) { Append(key, PMIX_PROC_RANK).data.rank = rank; }

void PmixInfo::AddFlag(const char* key) { Append(key, PMIX_BOOL).data.flag = true; }

void PmixInfo::AddProcess(const char* key, const std::string& name, uint32_t rank) {
  pmix_proc_t& process = processes_.emplace_back();
  std::strncpy(process.nspace, name.c_str(), sizeof process.nspace - 1);
  process.rank = rank;
  Append(key, PMIX_PROC).data.proc = &process;
}

PmixInfo& PmixInfo::AddList(const char* key) {
  auto& [list, array] = lists_.emplace_back();
  Append(key, PMIX_DATA_ARRAY).data.darray = &array;
  return list;
}

pmix_info_t* PmixInfo::data() {
  for (auto& [list, array] : lists_) array = {PMIX_INFO, list.size(), list.data()};
  return values_.data();
}

}  // namespace cohort::launcher
