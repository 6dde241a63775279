#include "cohort/runtime/tape/tape_head.h"

#include <utility>

#include "absl/status/status.h"
#include "cohort/v1/tape.pb.h"

namespace cohort::runtime {
namespace {

constexpr int kMostWorld = 1 << 24;

absl::Status NoHead() { return absl::DataLossError("its head makes no sense"); }

}  // namespace

std::string EncodeTapeHead(const TapeHead& head) {
  v1::TapeHead proto;
  proto.set_format(kTapeFormat);
  proto.set_version(head.version);
  proto.set_id(head.id);
  (void)proto.mutable_identity()->ParseFromString(head.welcome);
  proto.set_segment_epoch(head.segment_epoch);
  for (const std::string& variable : head.environment) proto.add_environment(variable);
  proto.set_started(head.started);
  proto.set_part(head.part);
  proto.set_first_call(head.first_call);
  proto.set_keep_steps(head.keep_steps);
  return proto.SerializeAsString();
}

absl::StatusOr<TapeHead> DecodeTapeHead(std::string_view body) {
  v1::TapeHead proto;
  if (!proto.ParseFromString(std::string(body)) || !proto.has_identity()) return NoHead();
  if (proto.format() != kTapeFormat || proto.version() != COHORT_VERSION) {
    return absl::FailedPreconditionError("Cohort " + proto.version().substr(0, 100) + " wrote it in format " +
                                         std::to_string(proto.format()) +
                                         ", and this is Cohort " COHORT_VERSION " with format " +
                                         std::to_string(kTapeFormat) + ": replay it with the version that wrote it");
  }
  const v1::Welcome& identity = proto.identity();
  if (identity.world_size() < 1 || identity.world_size() > kMostWorld || identity.rank() >= identity.world_size()) {
    return NoHead();
  }
  TapeHead head;
  head.version = proto.version();
  head.id = proto.id();
  head.welcome = identity.SerializeAsString();
  head.job_id = identity.job_id();
  head.rank = static_cast<int>(identity.rank());
  head.world_size = static_cast<int>(identity.world_size());
  head.epoch = identity.epoch();
  head.segment_epoch = proto.segment_epoch();
  head.environment.assign(proto.environment().begin(), proto.environment().end());
  head.started = proto.started();
  head.part = proto.part();
  head.first_call = proto.first_call();
  head.keep_steps = proto.keep_steps();
  return head;
}

std::string EncodeTapeLookup(const TapeLookup& lookup) {
  v1::TapeLookup proto;
  proto.set_kind(static_cast<v1::TapeLookup::Kind>(lookup.kind));
  proto.set_call(static_cast<uint32_t>(lookup.call));
  proto.set_key(lookup.key);
  proto.set_code(static_cast<uint32_t>(lookup.status.code()));
  proto.set_text(std::string(lookup.status.message()));
  proto.set_found(lookup.found);
  proto.set_value(lookup.value);
  proto.set_number(lookup.number);
  return proto.SerializeAsString();
}

absl::StatusOr<TapeLookup> DecodeTapeLookup(std::string_view body) {
  v1::TapeLookup proto;
  const bool read = proto.ParseFromString(std::string(body));
  if (!read || proto.kind() < v1::TapeLookup::KIND_STORE_GET || proto.kind() > v1::TapeLookup::KIND_VARIABLE ||
      proto.code() > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)) {
    return absl::DataLossError("a lookup makes no sense");
  }
  TapeLookup lookup;
  lookup.kind = static_cast<TapeLookup::Kind>(proto.kind());
  lookup.call = static_cast<int>(proto.call());
  lookup.key = std::move(*proto.mutable_key());
  lookup.status = absl::Status(static_cast<absl::StatusCode>(proto.code()), proto.text());
  lookup.found = proto.found();
  lookup.value = std::move(*proto.mutable_value());
  lookup.number = proto.number();
  return lookup;
}

}  // namespace cohort::runtime
