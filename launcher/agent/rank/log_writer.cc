#include "cohort/launcher/agent/rank/log_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::launcher {

using runtime::CondVar;
using runtime::Deadline;
using runtime::FileDescriptor;
using runtime::Mutex;
using runtime::MutexLock;

namespace {

constexpr size_t kPieceBytes = 64u << 10;  // so that a slow disk shows that it gets on

bool LeadsTo(const std::string& path, int fd) {
  struct stat there{};
  struct stat ours{};
  if (::fstat(fd, &ours) != 0) return true;  // nobody knows
  return ::stat(path.c_str(), &there) == 0 && there.st_dev == ours.st_dev && there.st_ino == ours.st_ino;
}

// Whether it is a link to a file that is there or would be made. Devices and pipes lose nothing.
bool LinksToAFile(const std::string& path) {
  struct stat link{};
  struct stat there{};
  if (::lstat(path.c_str(), &link) != 0 || !S_ISLNK(link.st_mode)) return false;
  return ::stat(path.c_str(), &there) != 0 || S_ISREG(there.st_mode);
}

}  // namespace

class LogWriter::File {
 public:
  explicit File(std::string path) : path(std::move(path)) {}

  const std::string path;
  FileDescriptor descriptor;       // the thread's
  bool moved = false;              // the thread's: its path leads to it no more
  std::atomic<bool> pipe = false;  // opening it waits for a reader
  std::function<void()> on_room;   // the loop's thread's
  // Under Shared's lock:
  bool given_up = false;  // can't be written; that was told
  size_t waiting = 0;     // bytes
  uint64_t left_out = 0;  // bytes lost that the file does not mention yet
  bool told_slow = false;
  bool awaited = false;  // it is full, and somebody has asked
};

// One thing to do to a file.
struct LogWriter::Piece {
  enum class Kind { kOpen, kWrite, kClose };
  std::shared_ptr<File> file;
  Kind kind = Kind::kWrite;
  std::string bytes = "";
};

struct LogWriter::Shared {
  mutable Mutex mutex;
  CondVar changed;
  EventLoop* loop COHORT_GUARDED_BY(mutex) = nullptr;  // none: nobody is there any more
  std::function<void()> tell COHORT_GUARDED_BY(mutex);
  std::deque<Piece> queue COHORT_GUARDED_BY(mutex);  // the first is being done while busy
  size_t waiting COHORT_GUARDED_BY(mutex) = 0;       // bytes
  std::vector<std::shared_ptr<File>> awaited COHORT_GUARDED_BY(mutex);
  bool has_thread COHORT_GUARDED_BY(mutex) = false;
  bool busy COHORT_GUARDED_BY(mutex) = false;
  bool stop COHORT_GUARDED_BY(mutex) = false;
  bool told_of_move COHORT_GUARDED_BY(mutex) = false;                // of all files of a folder it is told once
  Deadline::Clock::time_point progress COHORT_GUARDED_BY(mutex){};   // the latest, or when there was nothing to do
  std::vector<std::string> problems COHORT_GUARDED_BY(mutex);        // not told yet
  std::map<std::string, uint64_t> missing COHORT_GUARDED_BY(mutex);  // bytes left out, by path

  bool Stalled() const COHORT_REQUIRES(mutex) {
    return !queue.empty() && Deadline::Clock::now() - progress > kStalledAfter;
  }
  bool Full(const File& file) const COHORT_REQUIRES(mutex) {
    return file.waiting >= kHighWater || waiting >= kAllBytes / 2;
  }
  void TellOfRoom() COHORT_REQUIRES(mutex) {
    for (std::shared_ptr<File>& file : std::exchange(awaited, {})) {
      if (Full(*file)) {
        awaited.push_back(std::move(file));
        continue;
      }
      file->awaited = false;
      if (loop == nullptr) continue;
      loop->Post([file] {
        if (file->on_room) file->on_room();
      });
    }
  }
  void AddProblem(std::string text) COHORT_REQUIRES(mutex) {
    problems.push_back(std::move(text));
    if (loop != nullptr && problems.size() == 1) loop->Post(tell);
  }
};

LogWriter::LogWriter(EventLoop* loop, OnProblem on_problem)
    : shared_(std::make_shared<Shared>()), on_problem_(std::move(on_problem)) {
  MutexLock lock(shared_->mutex);
  shared_->loop = loop;
  shared_->tell = [this] { TellProblems(); };
}

LogWriter::~LogWriter() {
  MutexLock lock(shared_->mutex);
  shared_->loop = nullptr;
  shared_->tell = nullptr;
  shared_->stop = true;
  shared_->changed.NotifyAll();
}

std::shared_ptr<LogWriter::File> LogWriter::Open(const std::string& path, std::function<void()> on_room) {
  auto file = std::make_shared<File>(path);
  file->on_room = std::move(on_room);
  Put({.file = file, .kind = Piece::Kind::kOpen});
  return file;
}

void LogWriter::Write(const std::shared_ptr<File>& file, std::string_view bytes) {
  std::string notice;
  {
    MutexLock lock(shared_->mutex);
    if (file->given_up || bytes.empty()) return;
    if (file->waiting + bytes.size() > kFileBytes || shared_->waiting + bytes.size() > kAllBytes) {
      file->left_out += bytes.size();
      shared_->missing[file->path] += bytes.size();
      if (!std::exchange(file->told_slow, true)) {
        shared_->AddProblem(file->path +
                            (file->pipe ? " is a named pipe, and nobody reads it in time" : ": the disk is too slow") +
                            "; what it does not take is left out, it says where, and the job goes on");
      }
      return;
    }
    if (const uint64_t left_out = std::exchange(file->left_out, 0); left_out > 0) {
      notice = "\n[" + std::to_string(left_out) + " bytes left out: the disk was too slow]\n";
    }
  }
  if (!notice.empty()) Put({.file = file, .bytes = std::move(notice)});
  for (; !bytes.empty(); bytes.remove_prefix(std::min(bytes.size(), kPieceBytes))) {
    Put({.file = file, .bytes = std::string(bytes.substr(0, kPieceBytes))});
  }
}

void LogWriter::Close(const std::shared_ptr<File>& file) {
  file->on_room = nullptr;
  uint64_t left_out = 0;
  {
    MutexLock lock(shared_->mutex);
    left_out = std::exchange(file->left_out, 0);
  }
  if (left_out > 0) {
    Put({.file = file, .bytes = "\n[" + std::to_string(left_out) + " bytes left out: the disk was too slow]\n"});
  }
  Put({.file = file, .kind = Piece::Kind::kClose});
}

void LogWriter::Put(Piece piece) {
  Shared& shared = *shared_;
  MutexLock lock(shared.mutex);
  if (!shared.has_thread) {
    try {
      std::thread([kept = shared_] { Run(kept); }).detach();
      shared.has_thread = true;
    } catch (const std::system_error& error) {
      if (!std::exchange(piece.file->given_up, true)) {
        shared.AddProblem("can't write " + piece.file->path + ": no thread for it (" + error.code().message() +
                          "); the job goes on without it");
      }
      return;
    }
  }
  if (shared.queue.empty()) shared.progress = Deadline::Clock::now();
  piece.file->waiting += piece.bytes.size();
  shared.waiting += piece.bytes.size();
  const bool joins = !shared.queue.empty() && !(shared.busy && shared.queue.size() == 1) &&
                     piece.kind == Piece::Kind::kWrite && shared.queue.back().kind == Piece::Kind::kWrite &&
                     shared.queue.back().file == piece.file &&
                     shared.queue.back().bytes.size() + piece.bytes.size() <= kPieceBytes;
  if (joins) {
    shared.queue.back().bytes += piece.bytes;
  } else {
    shared.queue.push_back(std::move(piece));
  }
  shared.changed.NotifyAll();
}

bool LogWriter::full(const std::shared_ptr<File>& file) {
  MutexLock lock(shared_->mutex);
  if (!shared_->Full(*file) || shared_->Stalled()) return false;
  if (!std::exchange(file->awaited, true)) shared_->awaited.push_back(file);
  return true;
}

bool LogWriter::working() const {
  MutexLock lock(shared_->mutex);
  return !shared_->queue.empty() && !shared_->Stalled();
}

void LogWriter::TellProblems() {
  std::vector<std::string> problems;
  {
    MutexLock lock(shared_->mutex);
    problems.swap(shared_->problems);
  }
  for (const std::string& problem : problems) on_problem_(problem);
}

void LogWriter::Finish(std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::After(timeout);
  {
    Shared& shared = *shared_;
    MutexLock lock(shared.mutex);
    while (!shared.queue.empty() && !deadline.passed()) shared.changed.Wait(shared.mutex, deadline);
    for (const Piece& piece : shared.queue) {
      if (piece.bytes.empty() || piece.file->given_up) continue;  // another cause was told of the latter
      shared.missing[piece.file->path] += piece.bytes.size();
    }
    uint64_t bytes = 0;
    for (const auto& [path, missing] : shared.missing) bytes += missing;
    if (bytes > 0) {
      const size_t others = shared.missing.size() - 1;
      shared.AddProblem(std::to_string(bytes) + " bytes of what ranks have printed are missing in " +
                        shared.missing.begin()->first +
                        (others == 0 ? "" : " and " + std::to_string(others) + " more files of that folder") +
                        ": its disk, or who reads a pipe, was too slow");
    }
  }
  TellProblems();
}

void LogWriter::Run(const std::shared_ptr<Shared>& shared) {
  for (;;) {
    const Piece* piece = nullptr;  // stays where it is: only this thread takes from the front
    {
      MutexLock lock(shared->mutex);
      while (shared->queue.empty() && !shared->stop) shared->changed.Wait(shared->mutex);
      if (shared->stop) return;
      piece = &shared->queue.front();
      shared->busy = true;
    }
    std::string problem = Perform(*piece);
    MutexLock lock(shared->mutex);
    shared->busy = false;
    piece->file->waiting -= piece->bytes.size();
    shared->waiting -= piece->bytes.size();
    if (piece->file->moved && std::exchange(shared->told_of_move, true)) problem.clear();
    if (!problem.empty() && !std::exchange(piece->file->given_up, true)) shared->AddProblem(std::move(problem));
    shared->queue.pop_front();
    shared->progress = Deadline::Clock::now();
    shared->TellOfRoom();
    shared->changed.NotifyAll();
  }
}

// Empty, or what went wrong. Without the lock: whatever is called here may block for ever.
std::string LogWriter::Perform(const Piece& piece) {
  File& file = *piece.file;
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  if (piece.kind == Piece::Kind::kOpen) {
    if (LinksToAFile(file.path)) {
      return "can't write " + file.path +
             ": it is a symbolic link, and the file behind it would be lost; remove the link, or give another folder; "
             "the job goes on without it";
    }
    struct stat there{};
    file.pipe = ::stat(file.path.c_str(), &there) == 0 && S_ISFIFO(there.st_mode);
    file.descriptor = FileDescriptor(::open(file.path.c_str(), kFlags, 0666));
    if (!file.descriptor.valid() && errno == ENOENT) {  // another machine's folder
      std::error_code error;
      std::filesystem::create_directories(std::filesystem::path(file.path).parent_path(), error);
      file.descriptor = FileDescriptor(::open(file.path.c_str(), kFlags, 0666));
    }
    if (file.descriptor.valid()) return "";
    return "can't write " + file.path + ": " + std::strerror(errno) + "; the job goes on without it";
  }
  if (!file.descriptor.valid()) return "";
  int error = 0;
  if (piece.kind == Piece::Kind::kClose) {
    file.moved = !LeadsTo(file.path, file.descriptor.get());
    // Some file systems tell only here that what they took is lost.
    if (::close(file.descriptor.Release()) != 0 && errno != EINTR) error = errno;
  }
  for (std::string_view bytes = piece.bytes; error == 0 && !bytes.empty();) {
    const ssize_t n = ::write(file.descriptor.get(), bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == 0 && !file.moved) return "";
  if (error == 0) {
    return file.path + " was moved or removed while the job ran: what was printed is not in that folder any more";
  }
  file.descriptor = FileDescriptor();
  return "can't write " + file.path + ": " + std::strerror(error) + "; the job goes on, the file is incomplete";
}

}  // namespace cohort::launcher
