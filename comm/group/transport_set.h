// The transports of a process: made when first needed, shared by all communicators of a runtime, kept until it ends.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/runtime.h"

namespace cohort::comm {

// Makes this process' side of a transport. `runtime` and its `store` outlive it. kUnavailable or kUnimplemented, with
// the cause and the remedy, where it can't work here.
using TransportFactory = absl::StatusOr<std::unique_ptr<Transport>> (*)(runtime::Runtime& runtime,
                                                                        runtime::KeyValueStore& store);

// Whether a transport is worth choosing here where none is asked for by name. Empty: yes; else why not. A function of
// this host alone: hosts that differ are told so when they look each other's addresses up.
using TransportCondition = std::string (*)(runtime::Runtime& runtime);

// How a transport obeys COHORT_ENCRYPT_DATA.
enum class Encryption : uint8_t {
  kNotNeeded,    // its data stay on the host
  kWhereAsked,   // its factory reads the variable
  kUnavailable,  // it can't: where the variable is set, it is not made
};

// The transports of this build, in the order of preference (transports.def).
struct TransportEntry {
  std::string_view name;
  TransportFactory make;
  TransportCondition fits;
  Encryption encryption;
};
const std::vector<TransportEntry>& RegisteredTransports();

// Used with engine ownership, but for Put and Get.
class TransportSet : public runtime::MembershipListener, private runtime::KeyValueStore {
 public:
  // The set of `runtime`, made on the first call.
  static TransportSet& Of(runtime::Runtime& runtime);
  // `entries` outlives it.
  explicit TransportSet(runtime::Runtime& runtime, const std::vector<TransportEntry>& entries = RegisteredTransports());
  ~TransportSet() override;

  // Adds a transport before the registered ones; for tests.
  void Add(std::unique_ptr<Transport> transport);

  // The first transport that reaches `world_rank`. `allowed` restricts by name ("shm,ucx"); empty: as COHORT_TRANSPORTS
  // says, and shared memory. kUnimplemented when nothing does, naming what was tried and why not; kInvalidArgument when
  // `allowed` names nothing that there is, or COHORT_TRANSPORTS something that there is not.
  absl::StatusOr<Transport*> For(int world_rank, const std::string& allowed);

  // The name of the transport that For gives, made or not. Makes none, so that one which then can't be made is named
  // too. Empty: none reaches the rank.
  std::string_view Expected(int world_rank, const std::string& allowed);

  // How many communicators of the whole world were made of this runtime, this one included.
  uint64_t NextWorld() { return ++worlds_; }

  // Transport::OnGroupEnd, of all of them.
  void OnGroupEnd(uint64_t group, uint32_t epoch);

  void OnRanksLost(const std::vector<int>& ranks, const std::string& text) override;
  void OnGroupFailure(const runtime::GroupFailure& failure) override;

 private:
  struct Made {
    std::string name;
    std::unique_ptr<Transport> transport;  // null: could not be made
    absl::Status status;
  };
  // The job's store as transports see it. Any thread.
  absl::Status Put(std::string_view key, std::string_view value) override;
  absl::StatusOr<std::string> Get(std::string_view key, runtime::Deadline deadline) override;
  // Null: nothing has asked for it yet.
  Made* FindMade(const TransportEntry& entry);
  Made& MakeIfNeeded(const TransportEntry& entry);
  // Why the entry is not used, whatever it reaches; empty: it may be. `options` is the `allowed` of For, and `allowed`
  // what Allowed made of it.
  absl::StatusOr<std::string_view> WhyUnused(const TransportEntry& entry, const std::string& options,
                                             const std::string& allowed);
  // False: the job's data are to be encrypted, and the transport can't do so.
  absl::StatusOr<bool> MayCarryData(const TransportEntry& entry);
  // TransportEntry::fits, asked once.
  const std::string& WhyUnfit(const TransportEntry& entry);
  // `allowed` where it says something, else what COHORT_TRANSPORTS allows; empty: all.
  absl::StatusOr<std::string> Allowed(const std::string& allowed);
  std::string Names() const;
  absl::Status NoTransport(int world_rank, const std::string& allowed, const std::string& tried) const;

  runtime::Runtime& runtime_;
  const std::vector<TransportEntry>& entries_;
  std::vector<std::unique_ptr<Made>> made_;
  size_t added_ = 0;  // number of transports, from the front of made_, that were added
  uint64_t worlds_ = 0;
  std::map<std::string_view, std::string> unfit_;  // answers of TransportEntry::fits
  std::optional<std::string> by_environment_;      // COHORT_TRANSPORTS and shared memory, once it was read
  std::optional<bool> encrypt_data_;               // COHORT_ENCRYPT_DATA, once it was read
};

}  // namespace cohort::comm
