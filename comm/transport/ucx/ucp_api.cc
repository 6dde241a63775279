#include "cohort/comm/transport/ucx/ucp_api.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "absl/status/status.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::comm::ucx {
namespace {

constexpr char kSoname[] = "libucp.so.0";

struct Variable {
  const char* name;
  const char* value;
};
// UCX reads these in its library constructor, and they can't be changed later.
constexpr Variable kVariables[] = {
    {"UCX_HANDLE_ERRORS", "none"},  // no handlers for SIGSEGV and friends: the program's own stay
    {"UCX_ERROR_SIGNALS", ""},
    {"UCX_DEBUG_SIGNO", "0"},  // nor for SIGHUP, which would not end the program then
    {"UCX_MEM_EVENTS", "n"},   // no patching of mmap and brk: crashes under TSan, needed by no transport used here
    {"UCX_LOG_LEVEL", "warn"},
    {"UCX_VFS_ENABLE", "n"},  // no monitoring thread
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
};

absl::Status Missing(const std::string& what) {
  return absl::UnimplementedError(what +
                                  ". COHORT_TRANSPORTS=ucx needs UCX 1.11 or newer: install libucx0, or name another "
                                  "copy in COHORT_UCX_LIBRARY.");
}

absl::StatusOr<UcpApi> Open(const std::string& library) {
  void* handle = nullptr;
  if (library.empty()) handle = dlopen(kSoname, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) {
    for (const Variable& variable : kVariables) setenv(variable.name, variable.value, /*overwrite=*/0);
    handle = dlopen(library.empty() ? kSoname : library.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (handle == nullptr) return Missing(std::string("UCX could not be loaded (") + dlerror() + ")");

  UcpApi api;
  // Functions of libucs are found too: dlsym also looks through the library's dependencies.
#define COHORT_UCP_LOAD(name)                                                 \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(handle, #name));      \
  if (api.name == nullptr) {                                                  \
    dlclose(handle);                                                          \
    return Missing("the UCX library that was loaded has no function " #name); \
  }
  COHORT_UCP_FUNCTIONS(COHORT_UCP_LOAD)
#undef COHORT_UCP_LOAD
  unsigned major = 0, minor = 0, release = 0;
  api.ucp_get_version(&major, &minor, &release);
  api.version_major = static_cast<int>(major);
  api.version_minor = static_cast<int>(minor);
  return api;
}

}  // namespace

absl::StatusOr<const UcpApi*> LoadUcp(const std::string& library) {
  static runtime::Mutex mutex;
  static const UcpApi* loaded = nullptr;
  runtime::MutexLock lock(mutex);
  if (loaded == nullptr) {
    absl::StatusOr<UcpApi> api = Open(library);
    if (!api.ok()) return api.status();
    loaded = new UcpApi(*api);
  }
  return loaded;
}

}  // namespace cohort::comm::ucx
