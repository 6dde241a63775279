// Stands for NCCL where a profiler plug-in is concerned: opens the library that NCCL_PROFILER_PLUGIN names, takes the
// newest struct that it knows, and calls the plug-in when and as NCCL does. Moves no data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cohort/comm/nccl/profiler/profiler_interface.h"

namespace cohort::testing {

class ProfiledNccl {
 public:
  // `newest`: the newest version of the interface that this NCCL knows, 3 (2.26) to 6. `path`: the plug-in.
  explicit ProfiledNccl(const std::string& path, int newest = 5);
  // Closes the library, as NCCL does with its last communicator.
  ~ProfiledNccl();
  ProfiledNccl(const ProfiledNccl&) = delete;
  ProfiledNccl& operator=(const ProfiledNccl&) = delete;

  // The version of the plug-in that is used; 0: there is none.
  int version() const { return version_; }
  // The events that the plug-in asks for, after the first communicator.
  uint64_t mask() const { return static_cast<uint64_t>(static_cast<unsigned>(mask_)); }

  // A communicator. ncclCommInitRank makes it, and ncclCommDestroy ends it.
  struct Communicator {
    uint64_t hash = 0;
    int size = 0;
    int rank = 0;
    void* context = nullptr;
  };
  Communicator Init(uint64_t hash, int size, int rank);
  void Destroy(const Communicator& communicator) const;

  // A call with the handles that the plug-in gave.
  struct Call {
    const char* function = "AllReduce";
    const char* datatype = "ncclFloat32";
    size_t count = 0;
    int root_or_peer = 0;
    int channels = 1;
    void* handle = nullptr;
    std::vector<void*> kernels = {};
  };
  // ncclAllReduce and the like: the host launches the kernel.
  void Launch(const Communicator& communicator, Call* call) const;
  // The kernel begins and ends on the device, on each channel.
  void BeginKernel(const Communicator& communicator, Call* call) const;
  void EndKernel(Call* call) const;

  // Passed on as they are.
  void* Start(void* context, uint64_t type, const void* parent, const char* function, const char* datatype,
              size_t count = 1, int root_or_peer = 0, int channels = 1) const;
  void Stop(void* handle) const;
  // An event without a descriptor, one without a place for the handle, and a context without a place for it.
  void PassNulls() const;

 private:
  // Calls use(profiler) with the struct that is used, if there is one.
  template <typename Use>
  void ForProfiler(const Use& use) const;

  void* library_ = nullptr;
  const comm::nccl_profiler::Profiler3* three_ = nullptr;
  const comm::nccl_profiler::Profiler4* four_ = nullptr;
  const comm::nccl_profiler::Profiler5* five_ = nullptr;  // or six
  int version_ = 0;
  int mask_ = 0;
  uint64_t hash_ = 0;  // of version 3, which tells it with each call
  int rank_ = 0;
};

}  // namespace cohort::testing
