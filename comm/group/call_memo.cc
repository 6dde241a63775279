#include "cohort/comm/group/call_memo.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace cohort::comm {
namespace {

bool SameSite(const std::source_location& a, const std::source_location& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;  // two that differ may name one place: the call is then not found
}

template <typename AnyBuffer>
bool SameButPlace(const AnyBuffer& a, const AnyBuffer& b) {
  return a.count == b.count && a.dtype == b.dtype && a.memory == b.memory && a.device == b.device;
}

// Whether the buffers may lie where they do, as those of the remembered call might.
bool Placed(const RememberedCall& known, const CallArguments& arguments) {
  const auto in = reinterpret_cast<uintptr_t>(arguments.in.data);
  const auto out = reinterpret_cast<uintptr_t>(arguments.out.data);
  if (in != 0 && out != 0 && out - in == known.out_minus_in) [[likely]]
    return true;
  if ((known.in_bytes > 0 && in == 0) || (known.out_bytes > 0 && out == 0)) return false;
  if (known.in_bytes == 0 || known.out_bytes == 0) return true;
  return !known.request.in_place && (in + known.in_bytes <= out || out + known.out_bytes <= in);
}

inline bool Repeats(const RememberedCall& known, const CallArguments& arguments, const CallOptions& options) {
  const CallArguments& like = known.arguments;
  return arguments.kind == like.kind && arguments.op == like.op && arguments.root == like.root &&
         arguments.peer == like.peer && SameSite(arguments.site, like.site) && SameButPlace(arguments.in, like.in) &&
         SameButPlace(arguments.out, like.out) && options.timeout == known.timeout &&
         options.determinism == known.determinism && options.stream == known.stream && Placed(known, arguments);
}

// A wrapper may make all calls of a program from one site, so all that tells calls apart takes part.
template <size_t places>
size_t PlaceOf(const CallArguments& arguments) {
  static_assert(std::has_single_bit(places));
  uint64_t site = 0;
  static_assert(sizeof arguments.site <= sizeof site);
  std::memcpy(&site, &arguments.site, sizeof arguments.site);
  // No call has both a root and a peer. Factors that an address can have take no multiplication.
  const uint64_t hash =
      (site + static_cast<uint64_t>(arguments.in.count) * 9 + static_cast<uint64_t>(arguments.out.count) * 3 +
       static_cast<uint64_t>(arguments.root + arguments.peer)) *
      0x9e3779b97f4a7c15u;
  // Behind the hash: two calls that differ in one of these alone never have one place.
  const size_t way = static_cast<size_t>(arguments.kind) + 9 * static_cast<size_t>(arguments.op) +
                     5 * (static_cast<size_t>(arguments.in.dtype) + static_cast<size_t>(arguments.out.dtype));
  return ((hash >> 32) + way) % places;
}

}  // namespace

RememberedCall* CallMemo::Find(const CallArguments& arguments, const CallOptions& options) {
  const size_t place = PlaceOf<kPlaces>(arguments);
  if (!CanRemember(options)) return nullptr;
  RememberedCall* known = calls_[place].get();
  if (known != nullptr && Repeats(*known, arguments, options)) [[likely]]
    return known;
  return FindBeside(place, arguments, options);
}

[[gnu::noinline]] RememberedCall* CallMemo::FindBeside(size_t place, const CallArguments& arguments,
                                                       const CallOptions& options) {
  RememberedCall* known = calls_[Beside(place)].get();
  return known != nullptr && Repeats(*known, arguments, options) ? known : nullptr;
}

void CallMemo::Remember(const CallArguments& arguments, const CallOptions& options, const AcceptedCall& call,
                        Provider* provider, int rank, int size) {
  if (!CanRemember(options) || call.request.memory != MemoryKind::kHost || call.request.op == ReduceOp::kPreMulSum) {
    return;
  }
  const size_t place = PlaceOf<kPlaces>(arguments);
  std::unique_ptr<RememberedCall>& known = calls_[place];
  // The older of two goes: calls that alternate stay.
  if (std::unique_ptr<RememberedCall>& beside = calls_[Beside(place)];
      known != nullptr && (beside == nullptr || beside->id < known->id)) {
    std::swap(known, beside);
  }
  if (known == nullptr) known = std::make_unique<RememberedCall>();
  const BufferBlocks blocks = BlocksOf(arguments.kind, rank == arguments.root, size);
  const auto bytes_of = [](const auto& buffer, int used) {
    return used == 0 ? 0 : static_cast<size_t>(buffer.count) * SizeOf(buffer.dtype);
  };
  known->id = ++last_id_;
  known->arguments = arguments;
  known->timeout = options.timeout;
  known->determinism = options.determinism;
  known->stream = options.stream;
  known->in_bytes = bytes_of(arguments.in, blocks.in);
  known->out_bytes = bytes_of(arguments.out, blocks.out);
  known->out_minus_in =
      reinterpret_cast<uintptr_t>(arguments.out.data) - reinterpret_cast<uintptr_t>(arguments.in.data);
  known->request = call.request;
  known->provider = provider;
  known->service = call.service;
  known->record = call.record;
  known->beyond_sequence = runtime::HashBeyondSequence(call.record.signature);
  known->description = {};
  known->plan.reset();
  known->inline_run.reset();
  known->asked = !runs_inline_;
  known->counts = &counts_;
}

void CallMemo::Clear() {
  for (auto& known : calls_) known.reset();
}

void CallMemo::RunInline(bool run) {
  if (std::exchange(runs_inline_, run) != run) Clear();
}

}  // namespace cohort::comm
