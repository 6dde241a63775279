// The place of a call in a program that is not C++, as the source location that communicators put into messages.
#pragma once

#include <source_location>

namespace cohort::comm::c {

// Null, or a negative line, gives the place that messages leave out. The name is copied once, and lives as long as the
// process. Places beyond the bound of runtime/base/source_places.h are left out of messages.
std::source_location CallSite(const char* file, int line);

}  // namespace cohort::comm::c
