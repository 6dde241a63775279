// Byte counts for people.
#pragma once

#include <cstdint>
#include <string>

namespace cohort::trainer {

// 1536 -> "1.5 KiB". `bytes` is not negative.
std::string BytesText(int64_t bytes);

}  // namespace cohort::trainer
