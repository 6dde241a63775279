#include "absl/status/status.h"
#include "cohort/launcher/metrics/metrics_server.h"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    std::function<void()> /*wanted*/) {
  return WithRemedy(
      Remedy::kMetricsNotBuilt,
      absl::UnimplementedError("--metrics " + address +
                               ": this dlaunch was built without prometheus-cpp; install prometheus-cpp-dev and "
                               "build it again, or leave the option out"));
}

}  // namespace cohort::launcher
