#include "cohort/runtime/tape/tape_reader.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/tape/call_prediction.h"
#include "cohort/runtime/tape/tape_bytes.h"
#include "cohort/runtime/tape/tape_frames.h"
#include "cohort/runtime/tape/tape_place.h"

namespace cohort::runtime {
namespace {

// A shape of calls, as its entry says it.
struct Shape {
  uint32_t group = 0;
  uint32_t site = 0;
  uint64_t count = 0;
  uint64_t received = 0;
  bool unequal = false;
  std::span<const std::byte> counts = {};
};

// Puts the entries of one file into the contents.
class Filler {
 public:
  Filler(TapeFrames& frames, TapeContents& contents) : frames_(frames), contents_(contents) {}

  absl::Status Fill() {
    const bool later_part = contents_.head.id != 0;
    if (later_part && frames_.ends_in_magic()) {
      contents_.ending = TapeEnding::kCut;
      return absl::OkStatus();
    }
    COHORT_RETURN_IF_ERROR(frames_.PassMagic());
    COHORT_RETURN_IF_ERROR(ReadHead());
    while (!frames_.cut() && !frames_.AtEnd()) {
      if (contents_.ending == TapeEnding::kInOrder) return frames_.Damaged("something follows its end");
      TapeBytes bytes = frames_.Rest();
      const auto first = bytes.Plain<uint8_t>();
      const auto entry = static_cast<TapeEntry>(first & kEntryBits);
      if (IsCallEntry(entry)) {
        COHORT_RETURN_IF_ERROR(entry == TapeEntry::kResult ? AddResult(first, bytes) : AddCall(first, bytes));
        continue;
      }
      const std::span<const std::byte> body = bytes.Bytes(bytes.Number());
      COHORT_RETURN_IF_ERROR(frames_.Pass(bytes, kCheckBytes));
      if (!frames_.cut()) COHORT_RETURN_IF_ERROR(Add(static_cast<TapeEntry>(first), body));
    }
    if (frames_.cut()) contents_.ending = TapeEnding::kCut;
    return absl::OkStatus();
  }

 private:
  absl::Status ReadHead() {
    TapeBytes bytes = frames_.Rest();
    const auto entry = bytes.Plain<TapeEntry>();
    const std::span<const std::byte> body = bytes.Bytes(bytes.Number());
    COHORT_RETURN_IF_ERROR(frames_.Pass(bytes, kCheckBytes));
    const bool first_part = contents_.head.id == 0;
    if (frames_.cut() && !first_part) return absl::OkStatus();
    if (frames_.cut() || entry != TapeEntry::kHead) return frames_.Damaged("its head is missing");
    absl::StatusOr<TapeHead> head = DecodeTapeHead(TextOf(body));
    if (absl::IsDataLoss(head.status())) return frames_.Damaged(std::string(head.status().message()));
    COHORT_RETURN_IF_ERROR(head.status());
    if (first_part) {
      if (head->part != 0 || head->id == 0) return frames_.Damaged("it is a later part of a tape");
      contents_.head = *std::move(head);
      return absl::OkStatus();
    }
    if (head->id != contents_.head.id) {
      return absl::FailedPreconditionError("it belongs to another tape: copy the files of one tape alone");
    }
    const uint64_t known = contents_.left_out + contents_.calls.size();
    if (head->first_call < known) return frames_.Damaged("calls come again");
    contents_.left_out += head->first_call - known;
    if (head->first_call > known) contents_.behind_gap = contents_.calls.size();
    return absl::OkStatus();
  }

  absl::Status Add(TapeEntry entry, std::span<const std::byte> body) {
    TapeBytes bytes(body);
    switch (entry) {
      case TapeEntry::kGroup:
        return AddGroup(bytes);
      case TapeEntry::kSite:
        return AddSite(bytes);
      case TapeEntry::kShape:
        return AddShape(bytes);
      case TapeEntry::kFailure:
        return AddFailure(bytes);
      case TapeEntry::kLookup: {
        absl::StatusOr<TapeLookup> lookup = DecodeTapeLookup(TextOf(body));
        if (!lookup.ok()) return frames_.Damaged(std::string(lookup.status().message()));
        contents_.lookups.push_back(*std::move(lookup));
        return absl::OkStatus();
      }
      case TapeEntry::kStep: {
        const uint64_t step = bytes.Number();
        contents_.steps.push_back({step, bytes.Number() != 0});
        return Whole(bytes);
      }
      case TapeEntry::kThreads:
        contents_.several_threads = true;
        return Whole(bytes);
      case TapeEntry::kEnd:
        if (TextOf(body) != kTapeEnd) return frames_.Damaged("its end makes no sense");
        contents_.ending = TapeEnding::kInOrder;
        return absl::OkStatus();
      case TapeEntry::kHead:
      case TapeEntry::kBegin:
      case TapeEntry::kResult:
      case TapeEntry::kCall:
        break;
    }
    return frames_.Damaged("an entry is of no kind");
  }

  absl::Status Whole(const TapeBytes& bytes) const {
    if (!bytes.failed() && bytes.left() == 0) return absl::OkStatus();
    return frames_.Damaged("an entry has a wrong length");
  }

  absl::Status AddGroup(TapeBytes& bytes) {
    const auto index = static_cast<uint32_t>(bytes.Number());
    TapedGroup group;
    group.id = bytes.Plain<uint64_t>();
    const uint64_t size = bytes.Number();
    if (size > bytes.left()) return frames_.Damaged("a group has too many members");
    for (uint64_t i = 0; i < size; ++i) group.members.push_back(static_cast<int>(bytes.Number()));
    contents_.groups.insert_or_assign(index, std::move(group));
    return Whole(bytes);
  }

  absl::Status AddSite(TapeBytes& bytes) {
    const auto index = static_cast<uint32_t>(bytes.Number());
    contents_.sites.insert_or_assign(index, bytes.Plain<CallRecord>());
    return Whole(bytes);
  }

  absl::Status AddShape(TapeBytes& bytes) {
    const uint64_t index = bytes.Number();
    Shape shape;
    shape.group = static_cast<uint32_t>(bytes.Number());
    shape.site = static_cast<uint32_t>(bytes.Number());
    shape.count = bytes.Number();
    shape.received = bytes.Number();
    shape.unequal = bytes.Number() != 0;
    if (shape.unequal) {
      TapeBytes counts = bytes;
      shape.counts = bytes.Rest();
      counts.Number();
      for (int list = 0; list < 2; ++list) {
        const uint64_t size = counts.Number();
        if (size > counts.left()) return frames_.Damaged("a list of counts is too long");
        for (uint64_t i = 0; i < size; ++i) counts.Number();
      }
      COHORT_RETURN_IF_ERROR(Whole(counts));
    }
    COHORT_RETURN_IF_ERROR(Whole(bytes));
    if (!contents_.groups.contains(shape.group) || !contents_.sites.contains(shape.site)) {
      return frames_.Damaged("a call is of no group, or of no place");
    }
    if (index == 0) {
      shapes_.clear();
      prediction_.Clear();
    }
    if (index != shapes_.size() || index >= kMostShapes) return frames_.Damaged("a shape has a wrong number");
    shapes_.push_back(shape);
    return absl::OkStatus();
  }

  // kBegin and kCall. `bytes` stands behind the byte of the entry.
  absl::Status AddCall(uint8_t first, TapeBytes& bytes) {
    const bool done = static_cast<TapeEntry>(first & kEntryBits) == TapeEntry::kCall;
    const uint64_t index = (first & kOtherShape) != 0 ? bytes.Number() : prediction_.shape();
    if (bytes.failed()) return frames_.Pass(bytes, 0);
    if (index >= shapes_.size()) return frames_.Damaged("a call is of no shape");
    const Shape& shape = shapes_[index];
    TapedCall call{.group = shape.group,
                   .site = shape.site,
                   .count = shape.count,
                   .tag = prediction_.TagOf(static_cast<uint32_t>(index)),
                   .received = shape.received,
                   .unequal = shape.unequal,
                   .done = done,
                   .counts = shape.counts};
    if ((first & kOtherTag) != 0) call.tag = AddDifference(call.tag, bytes.Number());
    call.input = bytes.Plain<uint16_t>();
    if (done) call.result = bytes.Bytes(call.received);
    COHORT_RETURN_IF_ERROR(frames_.Pass(bytes, CheckBytesOf(call.result.size())));
    if (frames_.cut()) return absl::OkStatus();
    prediction_.Add(static_cast<uint32_t>(index), call.tag);
    contents_.events.push_back({TapeEvent::Kind::kBegin, contents_.calls.size()});
    if (done) {
      contents_.received += call.received;
      contents_.events.push_back({TapeEvent::Kind::kResult, contents_.calls.size()});
    }
    contents_.calls.push_back(call);
    return absl::OkStatus();
  }

  // `bytes` stands behind the byte of the entry.
  absl::Status AddResult(uint8_t first, TapeBytes& bytes) {
    const uint64_t back = bytes.Number();
    const bool other_part = (first & kOtherPart) != 0;
    const uint64_t length = other_part ? bytes.Number() : 0;
    if (bytes.failed()) return frames_.Pass(bytes, 0);
    const bool gone = back >= contents_.calls.size() - contents_.behind_gap;  // or damaged
    if (gone && !(other_part && contents_.behind_gap > 0)) return frames_.Damaged("a result is of no call");
    TapedCall* const call = gone ? nullptr : &contents_.calls[contents_.calls.size() - 1 - static_cast<size_t>(back)];
    const std::span<const std::byte> result = bytes.Bytes(other_part ? length : call->received);
    COHORT_RETURN_IF_ERROR(frames_.Pass(bytes, CheckBytesOf(result.size())));
    if (frames_.cut() || gone) return absl::OkStatus();
    if (call->done || result.size() != call->received) return frames_.Damaged("a result does not fit its call");
    call->done = true;
    call->result = result;
    contents_.received += result.size();
    contents_.events.push_back({TapeEvent::Kind::kResult, static_cast<size_t>(call - contents_.calls.data())});
    return absl::OkStatus();
  }

  absl::Status AddFailure(TapeBytes& bytes) {
    TapedFailure failure;
    failure.group = static_cast<uint32_t>(bytes.Number());
    const uint64_t code = bytes.Number();
    const std::string text(TextOf(bytes.Rest()));
    if (bytes.failed() || !contents_.groups.contains(failure.group) || code < 1 ||
        code > static_cast<uint64_t>(absl::StatusCode::kUnauthenticated)) {
      return frames_.Damaged("a failure makes no sense");
    }
    failure.status = absl::Status(static_cast<absl::StatusCode>(code), text);
    contents_.events.push_back({TapeEvent::Kind::kFailure, contents_.failures.size()});
    contents_.failures.push_back(std::move(failure));
    return absl::OkStatus();
  }

  TapeFrames& frames_;
  TapeContents& contents_;
  std::vector<Shape> shapes_;
  CallPrediction prediction_;
};

absl::Status Unreadable(const std::string& file, int error) {
  const absl::Status status = ErrnoStatus(error, "the tape " + file + " can't be read");
  return error == ENOENT ? absl::NotFoundError(status.message()) : status;
}

// `kept` keeps a later job from making the file empty while it is read.
absl::StatusOr<std::span<const std::byte>> MapFile(const std::string& file, FileDescriptor* kept) {
  FileDescriptor& fd = *kept;
  fd = FileDescriptor(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return Unreadable(file, errno);
  // Its writer, or one that comes after it, may make the file empty: this process would die of a look at it. Some file
  // systems have no locks, and nobody is kept out there.
  if (flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError("the tape " + file +
                                         " can't be read: a rank that runs writes it just now; wait for the end of its "
                                         "job, or replay a copy of the folder");
  }
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return Unreadable(file, errno);
  if (!S_ISREG(info.st_mode)) return absl::FailedPreconditionError("the tape " + file + " is no plain file");
  const auto bytes = static_cast<size_t>(info.st_size);
  if (bytes == 0) return std::span<const std::byte>();
  void* const at = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (at == MAP_FAILED) return Unreadable(file, errno);
  return std::span<const std::byte>(static_cast<const std::byte*>(at), bytes);
}

}  // namespace

CallRecord TapeContents::RecordOf(const TapedCall& call) const {
  CallRecord record = sites.at(call.site);
  record.signature.group = groups.at(call.group).id;
  record.signature.count = call.count;
  record.tag = call.tag;
  if (const auto counts = CountsOf(call)) record.bytes = counts->bytes;
  return record;
}

std::optional<TapedCounts> CountsOf(const TapedCall& call) {
  if (!call.unequal) return std::nullopt;
  TapeBytes bytes(call.counts);
  TapedCounts counts;
  counts.bytes = bytes.Number();
  for (std::vector<int64_t>* list : {&counts.in, &counts.out}) {
    for (uint64_t left = bytes.Number(); left > 0 && !bytes.failed(); --left) {
      list->push_back(static_cast<int64_t>(bytes.Number()));
    }
  }
  if (bytes.failed()) return std::nullopt;
  return counts;
}

absl::Status AddTapeFile(std::span<const std::byte> bytes, const std::string& file, TapeContents* contents) {
  TapeFrames frames(bytes, file);
  contents->bytes += bytes.size();
  const absl::Status status = Filler(frames, *contents).Fill();
  if (!absl::IsFailedPrecondition(status)) return status;
  return absl::FailedPreconditionError("the tape " + file + ": " + std::string(status.message()));
}

OpenTape::OpenTape(std::string path) : path_(std::move(path)) {}

OpenTape::~OpenTape() {
  for (const std::span<const std::byte> map : maps_) {
    munmap(const_cast<std::byte*>(map.data()), map.size());
  }
}

absl::Status OpenTape::Map(const std::string& file) {
  COHORT_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, MapFile(file, &files_.emplace_back()));
  if (!bytes.empty()) maps_.push_back(bytes);
  return AddTapeFile(bytes, file, &contents_);
}

absl::StatusOr<std::unique_ptr<OpenTape>> OpenTape::Open(const std::string& path) {
  std::unique_ptr<OpenTape> tape(new OpenTape(path));
  COHORT_RETURN_IF_ERROR(tape->Map(path));
  for (const uint64_t part : TapePartsOf(path)) {
    const std::string file = TapePartPath(path, part);
    if (tape->contents_.ending != TapeEnding::kStops) {
      return absl::DataLossError("the tape " + path + " is damaged: " + file + " follows its end; record it again");
    }
    COHORT_RETURN_IF_ERROR(tape->Map(file));
  }
  return tape;
}

}  // namespace cohort::runtime
