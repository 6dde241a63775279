// The names of what call records hold as numbers. comm's enumerations own the values (comm/types.h); the names live
// here because agents print records without knowing comm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cohort/runtime/segment/call_record.h"

namespace cohort::runtime {

// The kind of a record that is no collective of comm/types.h: a survivor waits for others in Communicator::Shrink.
inline constexpr uint16_t kShrinkCall = 17;

// "all_reduce", "send", ...; "?" for a number that names nothing.
std::string_view CallKindName(uint16_t kind);
// "float32", ...
std::string_view DataTypeName(uint16_t dtype);
// "sum", ...
std::string_view ReduceOpName(uint16_t op);

// The bit of a transport in CallService::transports (black_box.h), or of a provider that moves data itself: "shm",
// "ucx", "tcp", "nccl". Names that are none of these have one bit together.
uint16_t TransportBit(std::string_view name);
// The names of several bits: "shm+tcp". Empty: none.
std::string TransportNames(uint16_t transports);
// Whether TransportBit has a bit for this name alone.
bool IsKnownTransport(std::string_view name);

// True for send and receive, whose sequence counts per direction and peer.
bool IsPointToPoint(uint16_t kind);

// A text in memory of `room` bytes, up to its NUL, without control characters, whatever the memory holds.
std::string PrintableText(const char* text, size_t room);
// The call in words: "all_reduce(sum, float32, 1024)", "broadcast(float32, 1024, root 0)", "barrier()",
// "send(float32, 16, to 3)". Under checks "barrier() with --check nan,results".
std::string DescribeCall(const CallRecord& record);
// The same without the checks.
std::string DescribeArguments(const CallRecord& record);
// The record's call site, bounded and without control characters, whatever the record holds.
std::string SiteOf(const CallRecord& record);
// The call and its place: "all_reduce(sum, float32, 1024) at train.cc:88".
std::string DescribeCallAndSite(const CallRecord& record);

}  // namespace cohort::runtime
