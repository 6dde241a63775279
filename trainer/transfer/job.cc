#include "cohort/trainer/transfer/job.h"

#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"

namespace cohort::trainer {

Job::Job(const comm::CommunicatorOptions& options, std::chrono::nanoseconds timeout)
    : timeout_before_(default_timeout()), exceptions_(std::uncaught_exceptions()) {
  TORCH_CHECK(timeout.count() > 0, "Job: a timeout of ", timeout.count(), " ns");
  runtime::RuntimeOptions runtime_options;
  runtime_options.progress_thread = true;
  auto runtime = runtime::Runtime::Init(std::move(runtime_options));
  ThrowUnlessOk(runtime.status(), "joining the job");
  runtime_ = *std::move(runtime);
  auto world = comm::Communicator::World(*runtime_, options);
  ThrowUnlessOk(world.status(), "making the communicator of all ranks");
  world_ = *std::move(world);
  set_default_timeout(timeout);
}

Job::~Job() {
  set_default_timeout(timeout_before_);
  world_.reset();
  const absl::Status status = runtime_->Finalize();
  if (!status.ok() && std::uncaught_exceptions() == exceptions_) {
    std::fprintf(stderr, "the job ended with: %s\n", std::string(status.message()).c_str());
  }
}

int RunRank(const std::string& name, const std::function<void()>& program) {
  try {
    program();
    return 0;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
  }
  return 1;
}

std::unique_ptr<DeviceMesh> init_device_mesh(comm::Communicator& world, std::vector<int> mesh_shape,
                                             std::vector<std::string> mesh_dim_names) {
  auto mesh = DeviceMesh::Create(world, std::move(mesh_shape), std::move(mesh_dim_names));
  // A rank that can't make its mesh says so here, since the others would wait for it otherwise.
  const std::string made = mesh.ok() ? (*mesh)->Describe() : std::string(mesh.status().message());
  CheckSameSetup(world, "init_device_mesh", {{"mesh", made}});
  ThrowUnlessOk(mesh.status(), "laying the ranks out as a mesh");
  return *std::move(mesh);
}

std::unique_ptr<DeviceMesh> init_device_mesh(comm::Communicator& world, const std::string& mesh) {
  const absl::StatusOr<MeshShape> shape = ParseMesh(mesh);
  CheckSameSetup(world, "init_device_mesh", {{"mesh", shape.ok() ? shape->Describe() : mesh}});
  ThrowUnlessOk(shape.status(), "reading a mesh");
  return init_device_mesh(world, shape->sizes, shape->names);
}

}  // namespace cohort::trainer
