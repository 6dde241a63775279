#include "cohort/runtime/tape/tape_writer.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/tape/memory_hash.h"
#include "cohort/runtime/tape/tape_place.h"

namespace cohort::runtime {
namespace {

constexpr size_t kMostWaiting = 64 * 1024;  // bytes
constexpr size_t kMostShapeBytes = 1 << 20;
constexpr size_t kCopied = 4096;  // a result of at most this many bytes is written with its entry's head

// Each thread has one of its own, and so an address that names the thread.
thread_local char this_thread;

// The part of a record that all repetitions of a call share: group, number, count, tag and times are elsewhere.
CallRecord SiteRecord(const CallRecord& record) {
  CallRecord site;
  site.signature.root = record.signature.root;
  site.signature.kind = record.signature.kind;
  site.signature.dtype = record.signature.dtype;
  site.signature.op = record.signature.op;
  site.signature.determinism = record.signature.determinism;
  site.device = record.device;
  site.group_rank = record.group_rank;
  site.peer = record.peer;
  site.group_size = record.group_size;
  site.peer_world_rank = record.peer_world_rank;
  std::memcpy(site.user_op, record.user_op, strnlen(record.user_op, sizeof site.user_op - 1));
  std::memcpy(site.site, record.site, strnlen(record.site, sizeof site.site - 1));
  return site;
}

// The entry of a call's shape, without its index.
std::string ShapeBytes(const BegunCall& call, uint32_t site) {
  std::string bytes;
  PutNumber(call.group, &bytes);
  PutNumber(site, &bytes);
  PutNumber(call.count, &bytes);
  PutNumber(call.received, &bytes);
  PutNumber(call.unequal ? 1 : 0, &bytes);
  if (call.unequal) PutCounts(call.record->bytes, call.in_counts, call.out_counts, &bytes);
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TapeWriter>> TapeWriter::Create(const std::string& folder, const std::string& name,
                                                               const TapeHead& head) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::FailedPreconditionError("no tape can be written to " + folder + ": " + error.message() +
                                         "; give a folder that can be made and written");
  }
  const std::string path = (std::filesystem::path(folder) / name).string();
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<TapeFile> file, TapeFile::Create(path));
  for (const uint64_t part : TapePartsOf(path)) unlink(TapePartPath(path, part).c_str());
  std::unique_ptr<TapeWriter> writer(new TapeWriter(path, head, std::move(file)));
  MutexLock lock(writer->mutex_);
  writer->PutHead();
  return writer;
}

TapeWriter::TapeWriter(std::string path, TapeHead head, std::unique_ptr<TapeFile> file)
    : path_(std::move(path)), head_(std::move(head)), file_(std::move(file)) {}

TapeWriter::~TapeWriter() {
  MutexLock lock(mutex_);
  if (file_ != nullptr && !waiting_.empty()) Write({});
}

void TapeWriter::Put(TapeEntry entry, std::string_view body, When when) {
  if (file_ == nullptr) return;
  const size_t begin = waiting_.size();
  waiting_.push_back(static_cast<char>(entry));
  PutNumber(body.size(), &waiting_);
  waiting_.append(body);
  Seal(begin, {}, kCheckBytes, when);
}

void TapeWriter::PutCall(std::string_view header, std::span<const MemoryPiece> result, When when) {
  if (file_ == nullptr) return;
  const size_t begin = waiting_.size();
  waiting_.append(header);
  size_t bytes = 0;
  for (const MemoryPiece& piece : result) bytes += piece.bytes;
  Seal(begin, result, CheckBytesOf(bytes), when);
}

void TapeWriter::Seal(size_t begin, std::span<const MemoryPiece> rest, size_t check_bytes, When when) {
  begun_at_ = std::string::npos;
  MemoryHash hash;
  hash.Add(waiting_.data() + begin, waiting_.size() - begin);
  size_t bytes = 0;
  for (const MemoryPiece& piece : rest) {
    hash.Add(piece.data, piece.bytes);
    bytes += piece.bytes;
  }
  const uint32_t check = check_.Add(hash.Finish());
  if (bytes <= kCopied) {
    for (const MemoryPiece& piece : rest) waiting_.append(static_cast<const char*>(piece.data), piece.bytes);
    waiting_.append(reinterpret_cast<const char*>(&check), check_bytes);
    if (when == When::kNow || waiting_.size() > kMostWaiting) Write({});
    return;
  }
  pieces_.assign(rest.begin(), rest.end());
  pieces_.push_back({&check, check_bytes});
  Write(pieces_);
}

void TapeWriter::Write(std::span<const MemoryPiece> pieces) {
  std::vector<MemoryPiece> all;
  const MemoryPiece waiting{waiting_.data(), waiting_.size()};
  std::span<const MemoryPiece> written{&waiting, 1};
  if (!pieces.empty()) {
    all.push_back(waiting);
    all.insert(all.end(), pieces.begin(), pieces.end());
    written = all;
  }
  const absl::Status status = file_->Append(written);
  waiting_.clear();
  if (!status.ok()) Stop(status);
}

void TapeWriter::Stop(const absl::Status& why) {
  std::fprintf(stderr, "cohort: rank %d: %s; what it holds can be replayed, and the job goes on\n", head_.rank,
               std::string(why.message()).c_str());
  file_.reset();
}

void TapeWriter::PutHead() {
  waiting_.append(kTapeMagic);
  check_ = RunningCheck();
  Put(TapeEntry::kHead, EncodeTapeHead(head_), When::kNow);
}

void TapeWriter::Mention(TapeEntry entry, Known* known) {
  if (known->part == head_.part) return;
  known->part = head_.part;
  Put(entry, known->body, When::kLater);
}

uint32_t TapeWriter::AddGroup(uint64_t id, std::span<const int> members) {
  MutexLock lock(mutex_);
  const auto index = static_cast<uint32_t>(groups_.size());
  Known& group = groups_.emplace_back();
  PutNumber(index, &group.body);
  group.body.append(reinterpret_cast<const char*>(&id), sizeof id);
  PutNumber(members.size(), &group.body);
  for (const int member : members) PutNumber(static_cast<uint64_t>(member), &group.body);
  return index;
}

uint32_t TapeWriter::SiteOf(const CallRecord& record) {
  const CallRecord site = SiteRecord(record);
  const std::string key(reinterpret_cast<const char*>(&site), sizeof site);
  const auto [found, added] = sites_.try_emplace(key);
  Site& known = found->second;
  if (added) {
    known.index = static_cast<uint32_t>(sites_.size() - 1);
    PutNumber(known.index, &known.known.body);
    known.known.body += key;
  }
  Mention(TapeEntry::kSite, &known.known);
  return known.index;
}

uint32_t TapeWriter::ShapeOf(const BegunCall& call, uint32_t site) {
  std::string bytes = ShapeBytes(call, site);
  if (const auto found = shapes_.find(bytes); found != shapes_.end()) return found->second;
  if (shapes_.size() == kMostShapes || shape_bytes_ + bytes.size() > kMostShapeBytes) ForgetShapes();
  const auto index = static_cast<uint32_t>(shapes_.size());
  body_.clear();
  PutNumber(index, &body_);
  Put(TapeEntry::kShape, body_ + bytes, When::kLater);
  shape_bytes_ += bytes.size();
  shapes_.emplace(std::move(bytes), index);
  return index;
}

void TapeWriter::ForgetShapes() {
  shapes_.clear();
  shape_bytes_ = 0;
  prediction_.Clear();
}

uint64_t TapeWriter::Begin(const BegunCall& call) {
  MutexLock lock(mutex_);
  if (file_ != nullptr && !marks_steps_ && ++calls_in_step_ > kCallsOfAStep) BeginStep();
  if (file_ == nullptr) return calls_++;
  const void* const thread = &this_thread;
  if (std::exchange(thread_, thread) != thread && calls_ > 0) Mention(TapeEntry::kThreads, &threads_);
  Mention(TapeEntry::kGroup, &groups_[call.group]);
  const uint32_t shape = ShapeOf(call, SiteOf(*call.record));
  const uint64_t tag = call.record->tag, likely_tag = prediction_.TagOf(shape);
  uint8_t entry = static_cast<uint8_t>(TapeEntry::kBegin);
  if (shape != prediction_.shape()) entry |= kOtherShape;
  if (tag != likely_tag) entry |= kOtherTag;
  begun_.assign(1, static_cast<char>(entry));
  if (shape != prediction_.shape()) PutNumber(shape, &begun_);
  if (tag != likely_tag) PutDifference(likely_tag, tag, &begun_);
  begun_.append(reinterpret_cast<const char*>(&call.input), sizeof call.input);
  prediction_.Add(shape, tag);
  check_before_ = check_;
  const size_t at = waiting_.size();
  PutCall(begun_, {}, When::kLater);
  if (waiting_.size() > at) begun_at_ = at;
  return calls_++;
}

void TapeWriter::End(uint64_t call, std::span<const MemoryPiece> result) {
  MutexLock lock(mutex_);
  if (file_ == nullptr) return;
  if (begun_at_ != std::string::npos && call + 1 == calls_) {
    waiting_.resize(begun_at_);
    check_ = check_before_;
    begun_[0] = static_cast<char>((begun_[0] & ~kEntryBits) | static_cast<char>(TapeEntry::kCall));
    PutCall(begun_, result, When::kNow);
    return;
  }
  const bool other_part = call < head_.first_call;
  body_.assign(1, static_cast<char>(static_cast<uint8_t>(TapeEntry::kResult) | (other_part ? kOtherPart : 0)));
  PutNumber(calls_ - 1 - call, &body_);
  if (other_part) {
    uint64_t bytes = 0;
    for (const MemoryPiece& piece : result) bytes += piece.bytes;
    PutNumber(bytes, &body_);
  }
  PutCall(body_, result, When::kNow);
}

void TapeWriter::Fail(uint32_t group, const absl::Status& status) {
  MutexLock lock(mutex_);
  if (file_ == nullptr) return;
  Mention(TapeEntry::kGroup, &groups_[group]);
  body_.clear();
  PutNumber(group, &body_);
  PutNumber(static_cast<uint64_t>(status.code()), &body_);
  body_ += std::string(status.message());
  Put(TapeEntry::kFailure, body_, When::kNow);
}

void TapeWriter::AddLookup(const TapeLookup& lookup) {
  MutexLock lock(mutex_);
  if (file_ != nullptr) Put(TapeEntry::kLookup, EncodeTapeLookup(lookup), When::kNow);
}

void TapeWriter::Step(uint64_t step, bool stop) {
  MutexLock lock(mutex_);
  if (file_ == nullptr) return;
  marks_steps_ = true;
  BeginStep();
  if (file_ == nullptr) return;
  body_.clear();
  PutNumber(step, &body_);
  PutNumber(stop ? 1 : 0, &body_);
  Put(TapeEntry::kStep, body_, When::kLater);
}

void TapeWriter::BeginStep() {
  calls_in_step_ = 0;
  if (head_.keep_steps == 0) return;
  if (head_.part == 0 || steps_in_part_ == head_.keep_steps) NextPart();
  ++steps_in_part_;
}

void TapeWriter::NextPart() {
  if (!waiting_.empty()) Write({});
  if (file_ == nullptr) return;
  steps_in_part_ = 0;
  // Before the next one is made: a disk that has room for two parts is large enough.
  if (head_.part >= 2) unlink(TapePartPath(path_, head_.part - 1).c_str());
  ++head_.part;
  head_.first_call = calls_;
  absl::StatusOr<std::unique_ptr<TapeFile>> next = TapeFile::Create(TapePartPath(path_, head_.part));
  if (!next.ok()) return Stop(next.status());
  file_ = *std::move(next);
  ForgetShapes();
  PutHead();
}

void TapeWriter::Finish() {
  MutexLock lock(mutex_);
  if (file_ == nullptr) return;
  Put(TapeEntry::kEnd, kTapeEnd, When::kNow);
  file_.reset();
}

}  // namespace cohort::runtime
