// The job's own certificate authority. dlaunch makes it in memory and gives every agent a certificate over the agent's
// standard input. Then it forgets the authority's key. Nothing touches a disk, an environment or an argument list.
// Nobody outside the job can present a certificate that its members accept.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace cohort::launcher {

// The name that the rendezvous' certificate carries, whatever its address.
inline constexpr char kRendezvousName[] = "cohort-rendezvous";
// The name of an agent's certificate: "cohort-agent-3".
std::string AgentCertificateName(uint32_t node);

// The keys and certificates that one side of a mutual-TLS connection needs, all PEM.
struct TlsIdentity {
  std::string ca_certificate;
  std::string certificate;
  std::string private_key;
};

// A certificate authority with a fresh P-256 key. Thread-compatible.
class JobAuthority {
 public:
  // `validity` is how long its certificates last. It bounds the job's length: agents shake hands when they join, and
  // again when a standby takes over. A certificate is useless after the job because the authority's key dies with
  // dlaunch and the job's agents no longer listen. Certificates are valid from an hour ago, since clocks of nodes
  // differ. kInternal when OpenSSL fails.
  static absl::StatusOr<JobAuthority> Create(std::chrono::seconds validity = std::chrono::hours(10 * 365 * 24));
  JobAuthority(JobAuthority&&) noexcept;
  JobAuthority& operator=(JobAuthority&&) noexcept;
  ~JobAuthority();

  // Issues a new key and certificate for the agent of `node`. Subject and alternative name are AgentCertificateName.
  // With `hosts_rendezvous` it names kRendezvousName as well and so may serve as the rendezvous. It takes about 0.2 ms.
  absl::StatusOr<TlsIdentity> IssueAgent(uint32_t node, bool hosts_rendezvous = false) const;

 private:
  struct Rep;
  explicit JobAuthority(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

// "job-" and 16 random hexadecimal digits: a name, no secret.
std::string NewJobId();

// 32 random bytes from the system: JobSpec.job_secret. kInternal when the system has no randomness to give.
absl::StatusOr<std::string> NewJobSecret();

}  // namespace cohort::launcher
