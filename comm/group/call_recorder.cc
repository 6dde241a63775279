#include "cohort/comm/group/call_recorder.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/group/mix_hash.h"
#include "cohort/comm/group/transport_set.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::comm {
namespace {

// Counts that all members know are compared as one hash; those that only a pair knows, message by message.
uint64_t SignedCount(const CollectiveRequest& request) {
  if (request.blocks == nullptr) [[likely]]
    return static_cast<uint64_t>(request.count);
  if (request.kind != CollectiveKind::kAllGatherV && request.kind != CollectiveKind::kReduceScatterV) return 0;
  uint64_t hash = 0;
  const BlockTable& blocks = *request.blocks;
  for (const int64_t count : blocks.in_counts.size() > 1 ? blocks.in_counts : blocks.out_counts) {
    hash = MixHash(hash, static_cast<uint64_t>(count));
  }
  return hash;
}

// Elements in the larger buffer of the call.
uint64_t MovedElements(const CollectiveRequest& request, bool is_root, int size) {
  if (request.blocks == nullptr) [[likely]] {
    const BufferBlocks blocks = BlocksOf(request.kind, is_root, size);
    return static_cast<uint64_t>(request.count) * static_cast<uint64_t>(std::max(blocks.in, blocks.out));
  }
  const auto total = [](const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  };
  return std::max(total(request.blocks->in_counts), total(request.blocks->out_counts));
}

void FillUserOp(const UserReduceOp& op, runtime::CallRecord* record) {
  const size_t length = std::min(op.name.size(), sizeof record->user_op - 1);
  std::memcpy(record->user_op, op.name.data(), length);
  record->user_op[length] = '\0';
  uint64_t hash = op.commutative ? 1 : 2;
  for (const char c : op.name) hash = MixHash(hash, static_cast<unsigned char>(c));
  record->signature.tuning ^= hash;
}

// "ring", or "single_copy, or ring" where members may find out together that they need the other one.
void NameAlgorithm(const ServicePlan& plan, runtime::CallService* service) {
  size_t used = 0;
  const auto append = [&](std::string_view text) {
    used += text.copy(service->algorithm + used, sizeof service->algorithm - 1 - used);
  };
  const AlgorithmInfo* const chosen = FindAlgorithm(plan.algorithm);
  const AlgorithmInfo* const fallback = plan.fallback == 0 ? nullptr : FindAlgorithm(plan.fallback);
  if (chosen == nullptr) return;
  append(chosen->name);
  if (fallback == nullptr) return;
  append(", or ");
  append(fallback->name);
}

}  // namespace

const CallRecorder::SiteMemo& CallRecorder::SiteOf(const std::source_location& site) {
  const char* file = site.file_name();
  if (sites_.empty()) [[unlikely]]
    sites_.resize(kSites);
  SiteMemo& memo = sites_[(reinterpret_cast<uintptr_t>(file) / 8 + site.line()) & (kSites - 1)];
  if (memo.file == file && memo.line == site.line()) return memo;
  memo.file = file;
  memo.line = site.line();
  memo.text[0] = '\0';
  if (*file == '\0') return memo;  // a caller in C that does not say where it stands
  const char* slash = std::strrchr(file, '/');
  const char* name = slash == nullptr ? file : slash + 1;
  // The tail of a name that is too long: its end says more than its beginning.
  constexpr size_t kLongest = sizeof(runtime::CallRecord::site) - 12;
  const size_t length = std::strlen(name);
  if (length > kLongest) name += length - kLongest;
  std::snprintf(memo.text.data(), memo.text.size(), "%s:%u", name, site.line());
  return memo;
}

void CallRecorder::Sign(const CollectiveRequest& request, const ServicePlan& service, runtime::CallRecord* record) {
  runtime::CallSignature* signature = &record->signature;
  signature->group = group_.id;
  signature->count = SignedCount(request);
  signature->epoch = group_.epoch;
  signature->root = request.root;
  signature->kind = static_cast<uint16_t>(request.kind);
  signature->dtype = static_cast<uint16_t>(request.dtype);
  signature->op = Reduces(request.kind) ? static_cast<uint8_t>(request.op) : 0;
  signature->determinism = static_cast<uint8_t>(
      (Reduces(request.kind) ? static_cast<uint8_t>(request.determinism) : 0) | group_.checks.bits());
  signature->algorithm = service.algorithm;
  signature->tuning = service.tuning ^ request.parts ^ runtime::TagHash(request.tag);
  record->tag = request.tag;
  record->user_op[0] = '\0';
  if (request.user_op != nullptr) [[unlikely]]
    FillUserOp(*request.user_op, record);
}

void CallRecorder::Retag(uint64_t tag, runtime::CallRecord* record) {
  record->signature.tuning ^= runtime::TagHash(record->tag) ^ runtime::TagHash(tag);
  record->tag = tag;
}

void CallRecorder::Number(const CollectiveRequest& request, uint64_t beyond_sequence, runtime::CallRecord* record) {
  if (IsPointToPoint(request.kind)) {
    NumberMessage(request, record);
    return;
  }
  record->signature.sequence = ++sequence_;
  record->wire_signature = chain_ =
      runtime::ChainSignature(chain_, runtime::HashSignature(record->signature, beyond_sequence));
}

void CallRecorder::NumberMessage(const CollectiveRequest& request, runtime::CallRecord* record) {
  std::vector<uint64_t>& sequences = request.kind == CollectiveKind::kSend ? sent_ : received_;
  sequences.resize(group_.size);
  record->signature.sequence = ++sequences[request.peer];
  // Both sides must agree on the pair and its direction, the number of the message, count and type.
  runtime::CallSignature message = record->signature;
  message.kind = static_cast<uint16_t>(CollectiveKind::kSend);
  message.root = request.kind == CollectiveKind::kSend ? group_.rank : request.peer;
  record->wire_signature = runtime::HashSignature(message);
}

void CallRecorder::Describe(const CollectiveRequest& request, runtime::CallRecord* record) {
  record->bytes = MovedElements(request, request.root == group_.rank, group_.size) * SizeOf(request.dtype);
  record->group_rank = group_.rank;
  record->peer = request.peer;
  const int other = IsPointToPoint(request.kind) ? request.peer : request.root;
  record->peer_world_rank = other < 0 ? -1 : group_.members[other];
  record->group_size = group_.size;
  record->device = static_cast<int16_t>(request.memory == MemoryKind::kCuda ? request.device : -1);
  NameSite(request.site, record);
}

const CallRecorder::Neighbours& CallRecorder::FindNeighbours() {
  if (neighbours_.has_value()) return *neighbours_;
  Neighbours& found = neighbours_.emplace();
  const runtime::Runtime& runtime = *group_.runtime;
  for (const int member : group_.members) {
    if (member == runtime.rank()) continue;
    (runtime.node_of(member) == runtime.node_of(runtime.rank()) ? found.near : found.far) = member;
  }
  return found;
}

runtime::CallService CallRecorder::ServiceOf(const CollectiveRequest& request, const Provider& provider,
                                             const ServicePlan& plan) {
  runtime::CallService service;
  if (plan.algorithm != 0) NameAlgorithm(plan, &service);
  if (runtime::IsKnownTransport(provider.name())) {
    service.transports = runtime::TransportBit(provider.name());
    return service;
  }
  const auto add = [&](int world_rank) {
    if (world_rank < 0 || world_rank == group_.runtime->rank()) return;
    const std::string_view name = TransportSet::Of(*group_.runtime).Expected(world_rank, group_.transports);
    if (!name.empty()) service.transports |= runtime::TransportBit(name);
  };
  if (IsPointToPoint(request.kind)) {
    add(group_.members[request.peer]);
    return service;
  }
  const Neighbours& neighbours = FindNeighbours();
  add(neighbours.near);
  add(neighbours.far);
  return service;
}

void CallRecorder::NameSite(const std::source_location& site, runtime::CallRecord* record) {
  std::memcpy(record->site, SiteOf(site).text.data(), sizeof record->site);
}

}  // namespace cohort::comm
