#include "cohort/launcher/agent/mpi/pmix/pmix_library.h"

#include <dlfcn.h>

#include <string>

#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {
namespace {

constexpr char kName[] = "libpmix.so.2";

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  return *function != nullptr;
}

absl::StatusOr<PmixLibrary> Load() {
  void* const library = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return WithRemedy(
        Remedy::kPmixMissing,
        absl::NotFoundError(std::string("no ") + kName + ", by which Open MPI's ranks are served (" +
                            (why != nullptr ? why : "it can't be opened") +
                            "): install it (libpmix2) or name its folder in LD_LIBRARY_PATH; or give --mpi none, which "
                            "starts each rank alone, for a program that is linked with MPI and does not use it"));
  }
  PmixLibrary found;
  const bool whole = Find(library, "PMIx_server_init", &found.server_init) &&
                     Find(library, "PMIx_server_register_nspace", &found.register_nspace) &&
                     Find(library, "PMIx_server_deregister_nspace", &found.deregister_nspace) &&
                     Find(library, "PMIx_server_register_client", &found.register_client) &&
                     Find(library, "PMIx_server_setup_fork", &found.setup_fork) &&
                     Find(library, "PMIx_server_dmodex_request", &found.dmodex_request) &&
                     Find(library, "PMIx_Error_string", &found.error_string) &&
                     Find(library, "PMIx_Get_version", &found.get_version);
  if (!whole)
    return WithRemedy(
        Remedy::kPmixOld,
        absl::NotFoundError(std::string(kName) + " lacks functions of a server; install OpenPMIx 4 or newer"));
  return found;
}

}  // namespace

absl::StatusOr<const PmixLibrary*> PmixLibrary::Open() {
  static const absl::StatusOr<PmixLibrary> library = Load();
  if (!library.ok()) return library.status();
  return &*library;
}

}  // namespace cohort::launcher
