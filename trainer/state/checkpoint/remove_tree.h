// Removes directories, in place of std::filesystem::remove_all. The libtorch of PyTorch's wheels (2.11) exports that
// function, so that a program which links it gets it from there, and on Debian 12 it crashes: it was made for another
// libstdc++.
#pragma once

#include <filesystem>
#include <system_error>

namespace cohort::trainer {

// Removes what is at `path`, with all that it holds; symbolic links are not followed. Nothing there is no error.
void RemoveTree(const std::filesystem::path& path, std::error_code& error);
// The same; throws std::filesystem::filesystem_error.
void RemoveTree(const std::filesystem::path& path);

}  // namespace cohort::trainer
