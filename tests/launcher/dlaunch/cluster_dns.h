// A cluster's DNS for pods in network namespaces: it knows the names that it is told, and the pods' /etc/hosts and
// /etc/resolv.conf are as the kubelet writes them.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/mutex.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/support/linked_namespaces.h"

namespace cohort::launcher {

// Answers queries for IPv4 addresses by UDP, at port 53 of namespace 0.
class ClusterDns {
 public:
  static absl::StatusOr<std::unique_ptr<ClusterDns>> Start(const testing::LinkedNamespaces& namespaces);
  ~ClusterDns();
  ClusterDns(const ClusterDns&) = delete;
  ClusterDns& operator=(const ClusterDns&) = delete;

  // From now on `name` has this address. Other names do not exist.
  void Add(const std::string& name, const std::string& address);

 private:
  ClusterDns() = default;
  // In its thread, which is in namespace 0.
  absl::Status Listen();
  void Serve();
  // The answer to a query; empty where it is none.
  std::string Answer(const std::string& query);

  runtime::FileDescriptor socket_;
  std::atomic<bool> ending_{false};
  runtime::Mutex mutex_;
  std::map<std::string, std::string> addresses_ COHORT_GUARDED_BY(mutex_);
  std::thread thread_;
};

// The kubelet's translation of a pod's name, subdomain and address.
class PodSurroundings {
 public:
  // `full_name` is "host.subdomain.namespace.svc.cluster.local".
  PodSurroundings(const testing::LinkedNamespaces* namespaces, int node, std::string full_name);
  // In the pod's first process: its network, host name and files. False where that is not permitted.
  bool Enter() const;

 private:
  const testing::LinkedNamespaces* namespaces_;
  int node_;
  std::string full_name_;
  std::string host_;
  TemporaryFolder folder_;
  std::vector<std::pair<std::string, std::string>> mounts_;  // a file of the pod, and where it lies there
};

}  // namespace cohort::launcher
