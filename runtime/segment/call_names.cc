#include "cohort/runtime/segment/call_names.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace cohort::runtime {
namespace {

// Index: the value of the enumeration in comm/types.h.
constexpr std::string_view kKinds[] = {
    "?",          "broadcast",      "reduce",       "all_reduce",       "gather",       "scatter",
    "all_gather", "reduce_scatter", "all_to_all",   "barrier",          "send",         "recv",
    "gather_v",   "scatter_v",      "all_gather_v", "reduce_scatter_v", "all_to_all_v", "shrink"};
constexpr std::string_view kTypes[] = {"?",        "int8",    "uint8",   "int16",       "uint16",
                                       "int32",    "uint32",  "int64",   "uint64",      "float16",
                                       "bfloat16", "float32", "float64", "float8_e4m3", "float8_e5m2"};
constexpr std::string_view kOps[] = {"?",    "sum", "product", "min",       "max", "avg",
                                     "band", "bor", "bxor",    "premulsum", "user"};
constexpr std::string_view kLevels[] = {"?", "fast", "reproducible", "order_invariant"};
constexpr std::string_view kTransports[] = {"shm", "ucx", "tcp", "nccl", "another"};
constexpr auto kAnother = std::prev(std::end(kTransports));
constexpr uint16_t kBarrier = 9;
constexpr uint16_t kSend = 10;
constexpr uint16_t kRecv = 11;
constexpr uint16_t kGatherV = 12;  // the first of the variable-count forms
static_assert(kKinds[kShrinkCall] == "shrink");

constexpr uint8_t kUserOp = 10;
constexpr uint8_t kFast = 1;

std::string TagText(uint64_t tag) {
  return tag == 0 ? "" : "tag " + std::to_string(tag >> 32) + "/" + std::to_string(tag & 0xffffffffu);
}

template <size_t N>
std::string_view NameIn(const std::string_view (&names)[N], uint16_t value) {
  return value < N ? names[value] : names[0];
}

}  // namespace

std::string_view CallKindName(uint16_t kind) { return NameIn(kKinds, kind); }
std::string_view DataTypeName(uint16_t dtype) { return NameIn(kTypes, dtype); }
std::string_view ReduceOpName(uint16_t op) { return NameIn(kOps, op); }

uint16_t TransportBit(std::string_view name) {
  return static_cast<uint16_t>(1u << (std::find(std::begin(kTransports), kAnother, name) - std::begin(kTransports)));
}
std::string TransportNames(uint16_t transports) {
  std::string names;
  for (const std::string_view& name : kTransports) {
    if ((transports & TransportBit(name)) == 0) continue;
    if (!names.empty()) names += "+";
    names += name;
  }
  return names;
}
bool IsKnownTransport(std::string_view name) { return TransportBit(name) != TransportBit(*kAnother); }

// It may go to a terminal.
std::string PrintableText(const char* text, size_t room) {
  std::string printable(text, strnlen(text, room));
  for (char& c : printable) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return printable;
}

bool IsPointToPoint(uint16_t kind) { return kind == kSend || kind == kRecv; }

std::string DescribeArguments(const CallRecord& record) {
  const CallSignature& call = record.signature;
  std::string text(CallKindName(call.kind));
  if (call.kind == kShrinkCall) return text + "()";
  if (call.kind == kBarrier) return text + "(" + TagText(record.tag) + ")";
  text += "(";
  if (call.op != 0) text.append(ReduceOpName(call.op));
  if (call.op == kUserOp) text += ":" + PrintableText(record.user_op, sizeof record.user_op);
  if (call.op != 0) text += ", ";
  text.append(DataTypeName(call.dtype)).append(", ");
  if (call.kind >= kGatherV) {  // its count is a hash, or nothing that all ranks know
    text.append(std::to_string(record.bytes)).append(" bytes");
    if (call.count != 0) {  // lists that differ show it here, also where their sums are equal
      char lists[24];
      std::snprintf(lists, sizeof lists, ", counts #%08x", static_cast<unsigned>(call.count & 0xffffffffu));
      text += lists;
    }
  } else {
    text.append(std::to_string(call.count));
  }
  if (const uint8_t level = Checks::LevelOf(call); level > kFast) text.append(", ").append(NameIn(kLevels, level));
  if (call.root >= 0) text += ", root " + std::to_string(call.root);
  if (call.kind == kSend) text += ", to " + std::to_string(record.peer);
  if (call.kind == kRecv) text += ", from " + std::to_string(record.peer);
  if (record.tag != 0) text += ", " + TagText(record.tag);
  return text + ")";
}

std::string DescribeCall(const CallRecord& record) {
  const Checks checks = Checks::Of(record.signature);
  if (!checks.any()) return DescribeArguments(record);
  return DescribeArguments(record) + " with --check " +
         (checks.nan ? checks.results ? "nan,results" : "nan" : "results");
}

std::string SiteOf(const CallRecord& record) { return PrintableText(record.site, sizeof record.site); }

std::string DescribeCallAndSite(const CallRecord& record) {
  const std::string site = SiteOf(record);
  return site.empty() ? DescribeCall(record) : DescribeCall(record) + " at " + site;
}

}  // namespace cohort::runtime
