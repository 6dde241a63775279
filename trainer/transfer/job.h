// Job: Python's init_process_group, init_device_mesh and destroy_process_group, with exceptions.
//
//   Job job;  // joins the job that dlaunch started; gradients travel while backward computes
//   DistributedDataParallel ddp(model, job.world());
//
// Wrappers, optimizers and meshes must be destroyed before it, as locals declared after it are.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"
#include "cohort/trainer/mesh/device_mesh.h"

namespace cohort::trainer {

class Job {
 public:
  // Joins the job, with a progress thread. Blocks until this rank knows who it is. While this lives, collectives of the
  // trainer have `timeout` (set_default_timeout in collectives.h), which is init_process_group's timeout. It must be
  // equal on all ranks. Throws DistributedError, and c10::Error for a timeout that is not positive.
  explicit Job(const comm::CommunicatorOptions& options = {},
               std::chrono::nanoseconds timeout = std::chrono::minutes(10));
  // Ends in order. Errors that no call has reported yet go to standard error output, unless an exception is on its way,
  // which says what has failed.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  comm::Communicator& world() { return *world_; }
  runtime::Runtime& runtime() { return *runtime_; }
  int rank() const { return world_->rank(); }
  int size() const { return world_->size(); }

 private:
  std::unique_ptr<runtime::Runtime> runtime_;
  std::unique_ptr<comm::Communicator> world_;
  std::chrono::nanoseconds timeout_before_;
  int exceptions_;  // on their way when this was made
};

// Calls `program` and returns 0. If it throws, writes `name` and the error to standard error output and returns 1. For
// main().
int RunRank(const std::string& name, const std::function<void()>& program);

// As DeviceMesh::Create, but compares the meshes of all ranks, by one small call: where they differ, every rank throws
// DistributedError with the meshes of both. Collective over `world`; blocks. Throws c10::Error.
std::unique_ptr<DeviceMesh> init_device_mesh(comm::Communicator& world, std::vector<int> mesh_shape,
                                             std::vector<std::string> mesh_dim_names);
// The mesh that a text says, such as "pipeline=2,shard=2,tensor=2" (ParseMesh in mesh/mesh_shape.h). As above.
std::unique_ptr<DeviceMesh> init_device_mesh(comm::Communicator& world, const std::string& mesh);

}  // namespace cohort::trainer
