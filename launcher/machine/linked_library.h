// Which shared libraries a program asks for, as its file says.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cohort::launcher {

// The name ("libmpi.so.40") of the first shared library that the program at `path` asks for itself whose name begins
// with one of these; empty where it asks for none, or is no 64-bit ELF file of this machine's byte order, or a damaged
// one. Reads a few pages.
std::string FindNeededLibrary(const std::string& path, const std::vector<std::string_view>& beginnings);

}  // namespace cohort::launcher
