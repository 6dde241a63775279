#include "cohort/runtime/tape/tape_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/tape/memory_hash.h"
#include "cohort/runtime/tape/tape_bytes.h"
#include "cohort/runtime/tape/tape_place.h"

namespace cohort::runtime {
namespace {

constexpr size_t kCheckBytes = 4;
// The bytes of an entry kEnd but its hash.
constexpr std::byte kEndEntry[] = {std::byte{static_cast<uint8_t>(TapeEntry::kEnd)}, std::byte{0}};

struct Frame {
  TapeEntry entry = TapeEntry::kEnd;
  std::span<const std::byte> body = {};
};

uint32_t CheckOf(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(HashMemory(bytes.data(), bytes.size()));
}

bool EndsInOrder(std::span<const std::byte> file) {
  constexpr size_t kBytes = sizeof kEndEntry + kCheckBytes;
  if (file.size() < kBytes) return false;
  const std::span<const std::byte> last = file.last(kBytes);
  const uint32_t check = CheckOf(kEndEntry);
  return std::memcmp(last.data(), kEndEntry, sizeof kEndEntry) == 0 &&
         std::memcmp(last.data() + sizeof kEndEntry, &check, kCheckBytes) == 0;
}

// Cuts one file into entries.
class Frames {
 public:
  Frames(std::span<const std::byte> file, const std::string& name) : file_(file), name_(name) {}

  bool at_end() const { return at_ == file_.size(); }
  // The file ends within the entry at its end.
  bool cut() const { return cut_; }
  bool ends_in_magic() const { return TextOf(file_) == kTapeMagic.substr(0, file_.size()); }
  absl::Status Damaged(const std::string& why) const {
    return absl::DataLossError("the tape " + name_ + " is damaged at byte " + std::to_string(at_) + ": " + why +
                               "; copy it again from where it was recorded, or record it again");
  }
  absl::Status CheckMagic() {
    if (file_.size() >= kTapeMagic.size() && TextOf(file_.first(kTapeMagic.size())) == kTapeMagic) {
      at_ = kTapeMagic.size();
      return absl::OkStatus();
    }
    return Damaged(file_.empty() ? "it is empty" : "it does not begin as a tape does");
  }
  // The next entry; where cut() holds then, there is none.
  absl::StatusOr<Frame> Next() {
    TapeBytes bytes(file_.subspan(at_));
    const auto entry = bytes.Plain<uint8_t>();
    const uint64_t length = bytes.Number();
    const size_t head = file_.size() - at_ - bytes.left();
    const std::span<const std::byte> body = bytes.Bytes(length);
    const std::span<const std::byte> check = bytes.Bytes(kCheckBytes);
    if (bytes.failed()) return Cut("an entry reaches beyond the end");
    const uint32_t right = CheckOf(file_.subspan(at_, head + body.size()));
    if (std::memcmp(check.data(), &right, kCheckBytes) != 0) {
      if (bytes.left() == 0 || AllZero(bytes.Rest())) return Cut("the last entry is not what was written");
      return Damaged("an entry is not what was written");
    }
    next_ = at_ + head + body.size() + kCheckBytes;
    return Frame{static_cast<TapeEntry>(entry), body};
  }
  void Pass() { at_ = next_; }

 private:
  static bool AllZero(std::span<const std::byte> bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
  }
  // Only a killed process leaves such an end.
  absl::StatusOr<Frame> Cut(const std::string& why) {
    if (EndsInOrder(file_)) return Damaged(why);
    cut_ = true;
    return Frame{};
  }

  const std::span<const std::byte> file_;
  const std::string& name_;
  size_t at_ = 0;
  size_t next_ = 0;
  bool cut_ = false;
};

// Puts the entries of one file into the contents.
class Filler {
 public:
  Filler(Frames& frames, TapeContents& contents) : frames_(frames), contents_(contents) {}

  absl::Status Fill() {
    const bool later_part = contents_.head.id != 0;
    if (later_part && frames_.ends_in_magic()) contents_.cut = true;
    if (contents_.cut) return absl::OkStatus();
    COHORT_RETURN_IF_ERROR(frames_.CheckMagic());
    COHORT_RETURN_IF_ERROR(ReadHead());
    while (!contents_.cut && !frames_.at_end()) {
      if (contents_.ended) return frames_.Damaged("something follows its end");
      COHORT_ASSIGN_OR_RETURN(const Frame frame, frames_.Next());
      if (frames_.cut()) {
        contents_.cut = true;
        return absl::OkStatus();
      }
      COHORT_RETURN_IF_ERROR(Add(frame));
      frames_.Pass();
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ReadHead() {
    COHORT_ASSIGN_OR_RETURN(const Frame frame, frames_.Next());
    if (frames_.cut() && contents_.head.id != 0) {
      contents_.cut = true;
      return absl::OkStatus();
    }
    if (frames_.cut() || frame.entry != TapeEntry::kHead) return frames_.Damaged("its head is missing");
    absl::StatusOr<TapeHead> head = DecodeTapeHead(TextOf(frame.body));
    if (absl::IsDataLoss(head.status())) return frames_.Damaged(std::string(head.status().message()));
    COHORT_RETURN_IF_ERROR(head.status());
    if (contents_.head.id == 0) {
      if (head->part != 0 || head->id == 0) return frames_.Damaged("it is a later part of a tape");
      contents_.head = *std::move(head);
    } else {
      if (head->id != contents_.head.id) {
        return absl::FailedPreconditionError("it belongs to another tape: copy the files of one tape alone");
      }
      const uint64_t known = contents_.left_out + contents_.calls.size();
      if (head->first_call < known) return frames_.Damaged("calls come again");
      contents_.left_out += head->first_call - known;
      if (head->first_call > known) contents_.behind_gap = contents_.calls.size();
    }
    frames_.Pass();
    return absl::OkStatus();
  }

  absl::Status Add(const Frame& frame) {
    TapeBytes bytes(frame.body);
    switch (frame.entry) {
      case TapeEntry::kGroup:
        return AddGroup(bytes);
      case TapeEntry::kSite:
        return AddSite(bytes);
      case TapeEntry::kBegin:
        return Begin(bytes, /*done=*/false);
      case TapeEntry::kCall:
        return Begin(bytes, /*done=*/true);
      case TapeEntry::kResult:
        return AddResult(bytes);
      case TapeEntry::kFailure:
        return AddFailure(bytes);
      case TapeEntry::kLookup: {
        absl::StatusOr<TapeLookup> lookup = DecodeTapeLookup(TextOf(frame.body));
        if (!lookup.ok()) return frames_.Damaged(std::string(lookup.status().message()));
        contents_.lookups.push_back(*std::move(lookup));
        return absl::OkStatus();
      }
      case TapeEntry::kStep: {
        const uint64_t step = bytes.Number();
        contents_.steps.push_back({step, bytes.Number() != 0});
        return Whole(bytes);
      }
      case TapeEntry::kEnd:
        contents_.ended = true;
        return Whole(bytes);
      case TapeEntry::kHead:
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

  absl::Status Begin(TapeBytes& bytes, bool done) {
    TapedCall call;
    const uint64_t flags = bytes.Number();
    call.group = static_cast<uint32_t>(bytes.Number());
    call.site = static_cast<uint32_t>(bytes.Number());
    call.count = bytes.Number();
    call.tag = bytes.Number();
    call.input = bytes.Plain<uint16_t>();
    if (!contents_.groups.contains(call.group) || !contents_.sites.contains(call.site)) {
      return frames_.Damaged("a call is of no group, or of no place");
    }
    call.unequal = (flags & kUnequal) != 0;
    if (call.unequal) {
      const size_t before = bytes.left();
      TapeBytes counts = bytes;
      counts.Number();
      for (int list = 0; list < 2; ++list) {
        const uint64_t size = counts.Number();
        if (size > counts.left()) return frames_.Damaged("a list of counts is too long");
        for (uint64_t i = 0; i < size; ++i) counts.Number();
      }
      if (counts.failed()) return frames_.Damaged("a list of counts ends early");
      call.counts = bytes.Bytes(before - counts.left());
    }
    if ((flags & kOtherThread) != 0 && !contents_.calls.empty()) contents_.several_threads = true;
    const size_t index = contents_.calls.size();
    contents_.events.push_back({TapeEvent::Kind::kBegin, index});
    if (done) {
      call.done = true;
      call.result = bytes.Rest();
      contents_.received += call.result.size();
      contents_.events.push_back({TapeEvent::Kind::kResult, index});
    }
    contents_.calls.push_back(call);
    return Whole(bytes);
  }

  absl::Status AddResult(TapeBytes& bytes) {
    const uint64_t back = bytes.Number();
    if (bytes.failed()) return frames_.Damaged("a result is of no call");
    if (back >= contents_.calls.size() - contents_.behind_gap) {
      // Its call began in a part that is gone.
      if (contents_.behind_gap > 0) return absl::OkStatus();
      return frames_.Damaged("a result is of no call");
    }
    const size_t index = contents_.calls.size() - 1 - static_cast<size_t>(back);
    TapedCall& call = contents_.calls[index];
    if (call.done) return frames_.Damaged("a call has two results");
    call.done = true;
    call.result = bytes.Rest();
    contents_.received += call.result.size();
    contents_.events.push_back({TapeEvent::Kind::kResult, index});
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

  Frames& frames_;
  TapeContents& contents_;
};

absl::Status Unreadable(const std::string& file, int error) {
  const absl::Status status = ErrnoStatus(error, "the tape " + file + " can't be read");
  return error == ENOENT ? absl::NotFoundError(status.message()) : status;
}

absl::StatusOr<std::span<const std::byte>> MapFile(const std::string& file) {
  const FileDescriptor fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info{};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return Unreadable(file, errno);
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
  Frames frames(bytes, file);
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
  COHORT_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, MapFile(file));
  if (!bytes.empty()) maps_.push_back(bytes);
  return AddTapeFile(bytes, file, &contents_);
}

absl::StatusOr<std::unique_ptr<OpenTape>> OpenTape::Open(const std::string& path) {
  std::unique_ptr<OpenTape> tape(new OpenTape(path));
  COHORT_RETURN_IF_ERROR(tape->Map(path));
  for (const uint64_t part : TapePartsOf(path)) {
    const std::string file = TapePartPath(path, part);
    if (tape->contents_.ended || tape->contents_.cut) {
      return absl::DataLossError("the tape " + path + " is damaged: " + file + " follows its end; record it again");
    }
    COHORT_RETURN_IF_ERROR(tape->Map(file));
  }
  return tape;
}

absl::StatusOr<TapeHead> ReadTapeHead(const std::string& path) {
  constexpr size_t kMostHead = 16 << 20;
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return Unreadable(path, errno);
  std::string text;
  char buffer[64 * 1024];
  for (ssize_t n = 1; n > 0 && text.size() < kMostHead;) {
    n = read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno != EINTR) return Unreadable(path, errno);
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
    Frames frames(std::as_bytes(std::span(text)), path);
    if (!frames.CheckMagic().ok()) continue;
    const absl::StatusOr<Frame> frame = frames.Next();
    if (!frame.ok() || frames.cut() || frame->entry != TapeEntry::kHead) continue;
    const absl::StatusOr<TapeHead> head = DecodeTapeHead(TextOf(frame->body));
    if (head.ok()) return head;
    if (!absl::IsFailedPrecondition(head.status())) break;
    return absl::FailedPreconditionError("the tape " + path + ": " + std::string(head.status().message()));
  }
  Frames frames(std::as_bytes(std::span(text)), path);
  COHORT_RETURN_IF_ERROR(frames.CheckMagic());
  return frames.Damaged("its head is missing");
}

}  // namespace cohort::runtime
