// Bytes by zlib, through protobuf, which brings it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace cohort::runtime {

// Quickly rather than small.
std::string Compress(const std::string& bytes);
// Nothing where it is no such text, or longer than `most`. One that was cut short gives the part that it holds.
std::optional<std::string> Uncompress(const std::string& compressed, size_t most);

}  // namespace cohort::runtime
