// Job: what init_process_group, init_device_mesh and destroy_process_group are in Python, in exceptions.
//
//   Job job;  // joins the job that dlaunch started; gradients travel while backward computes
//   DistributedDataParallel ddp(model, job.world());
//
// Wrappers, optimizers and meshes go before it, as locals declared after it do.
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
  // Blocks until this rank knows who it is. With a progress thread. While this lives, collectives of the trainer have
  // `timeout` (set_default_timeout in collectives.h): init_process_group's. Equal on all ranks. Throws
  // DistributedError, and c10::Error for a timeout that is not positive.
  explicit Job(const comm::CommunicatorOptions& options = {},
               std::chrono::nanoseconds timeout = std::chrono::minutes(10));
  // Ends in order; what no call has reported yet is said on standard error output.
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
};

// Calls `program` and returns 0; says what it throws on standard error output, after `name`, and returns 1: for main().
int RunRank(const std::string& name, const std::function<void()>& program);

// DeviceMesh::Create that throws c10::Error.
std::unique_ptr<DeviceMesh> init_device_mesh(comm::Communicator& world, std::vector<int> mesh_shape,
                                             std::vector<std::string> mesh_dim_names);

}  // namespace cohort::trainer
