#include "comm/provider_registry.h"

#include "comm/nccl/nccl_provider.h"
#include "comm/plan_provider.h"
#include "comm/point_to_point.h"
#include "runtime/base/status_macros.h"
#include "runtime/env.h"

namespace cohort::comm {
namespace {

using MadeProvider = absl::StatusOr<std::unique_ptr<Provider>>;

bool OnCuda(const CollectiveRequest& request) { return request.memory == MemoryKind::kCuda; }
bool IsMessage(const CollectiveRequest& request) { return IsPointToPoint(request.kind); }
bool IsCollective(const CollectiveRequest&) { return true; }

MadeProvider MakeNccl(const GroupContext* group, LinkSource*) {
  COHORT_ASSIGN_OR_RETURN(const runtime::Environment environment, runtime::Environment::Read());
  NcclOptions options;
  options.nccl_library = environment.nccl_library;
  options.cuda_library = environment.cuda_library;
  return MakeNcclProvider(group, options);
}

MadeProvider MakePointToPoint(const GroupContext* group, LinkSource* links) {
  return std::make_unique<PointToPoint>(group, links);
}

MadeProvider MakePlan(const GroupContext* group, LinkSource* links) {
  return std::make_unique<PlanProvider>(group, links);
}

constexpr ProviderEntry kEntries[] = {
#define COHORT_PROVIDER(name, serves, factory) {#name, &serves, &factory},
#include "comm/providers.def"
#undef COHORT_PROVIDER
};

}  // namespace

std::span<const ProviderEntry, kProviders> RegisteredProviders() { return kEntries; }

}  // namespace cohort::comm
