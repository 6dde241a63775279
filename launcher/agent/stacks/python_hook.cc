#include "cohort/launcher/agent/stacks/python_hook.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace cohort::launcher {
namespace {

constexpr char kFileVariable[] = "COHORT_STACK_FILE";
constexpr char kPathVariable[] = "PYTHONPATH";
constexpr char kListens[] = "dlaunch-listener";
constexpr size_t kReadAtOnce = 1u << 20;
constexpr int kMostReads = 16;       // in a row: the rank may write faster than it is read
constexpr size_t kMaxListeners = 8;  // of a rank
constexpr size_t kMaxSaid = 64;      // kept of a rank
constexpr size_t kMaxThreads = 256;  // looked at

// Whatever goes wrong in it, the program does not notice. SIGNAL becomes the number.
constexpr char kHook[] = R"(import os
import sys


def _listen(path):
    import _signal
    import _thread
    import faulthandler
    import fcntl
    if _signal.getsignal(SIGNAL) != _signal.SIG_DFL:
        return
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:  # out of the way of programs that count on low numbers
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 300)
        os.close(fd)
        fd = high
    except OSError:
        pass
    _signal.signal(SIGNAL, _signal.SIG_IGN)  # what faulthandler puts back as Python ends: a late signal must not kill
    faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=False)
    os.write(fd, ("dlaunch-listener %d %d %d\n" % (os.getpid(), fd, _thread.get_ident())).encode())


def _hide(here):
    sys.path[:] = [path for path in sys.path if path != here]
    sys.path_importer_cache.pop(here, None)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here in paths:
        paths.remove(here)
        if paths:
            os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        else:
            del os.environ["PYTHONPATH"]


try:
    _hide(os.path.dirname(__file__))
    _path = os.environ.pop("COHORT_STACK_FILE", None)
    if _path:
        _listen(_path)
except Exception:
    pass
sys.modules.pop("sitecustomize", None)
import sitecustomize  # the user's own; where there is none, Python expects this error
)";

std::string FdPath(int fd) { return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd); }

// The same for all ranks of this process: made once, and kept as long as it lives.
int HookFile() {
  static const runtime::FileDescriptor file = [] {
    std::string text = kHook;
    const std::string_view word = "SIGNAL";
    for (size_t at = 0; (at = text.find(word, at)) != std::string::npos;) {
      text.replace(at, word.size(), std::to_string(StackSignal()));
    }
    const std::string zip = StoredZip("sitecustomize.py", text);
    runtime::FileDescriptor memory(::memfd_create("cohort-python-hook", MFD_CLOEXEC));
    const bool whole = memory.valid() && ::write(memory.get(), zip.data(), zip.size()) == ssize_t(zip.size());
    return whole ? std::move(memory) : runtime::FileDescriptor();
  }();
  return file.get();
}

uint32_t Crc32(const std::string& data) {
  uint32_t crc = ~0u;
  for (const char byte : data) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

void Append(std::string* text, uint32_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) text->push_back(static_cast<char>(value >> (8 * i)));
}

// Bit `signal` of the mask that a status file of /proc has under that name.
bool HasSignal(const std::string& status_path, const char* name, int signal) {
  std::ifstream status(status_path);
  const size_t length = std::strlen(name);
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(name)) continue;
    return ((std::strtoull(line.c_str() + length, nullptr, 16) >> (signal - 1)) & 1) != 0;
  }
  return false;
}

bool HasOpen(pid_t pid, int fd, const struct stat& file) {
  struct stat open{};
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  return ::stat(path.c_str(), &open) == 0 && open.st_dev == file.st_dev && open.st_ino == file.st_ino;
}

}  // namespace

int StackSignal() { return SIGRTMAX - 7; }

std::string StoredZip(const std::string& name, const std::string& content) {
  const uint32_t size = static_cast<uint32_t>(content.size());
  std::string facts;              // that both headers have
  Append(&facts, 20, 2);          // the version that reads it
  Append(&facts, 0, 4);           // flags; stored
  Append(&facts, 0x00210000, 4);  // the first of January 1980
  Append(&facts, Crc32(content), 4);
  Append(&facts, size, 4);
  Append(&facts, size, 4);
  Append(&facts, static_cast<uint32_t>(name.size()), 2);
  Append(&facts, 0, 2);
  std::string zip = "PK\x03\x04" + facts + name + content;
  std::string entry = "PK\x01\x02";
  Append(&entry, 20, 2);
  entry += facts;
  entry += std::string(14, '\0') + name;  // no comment, first disk, no attributes, at offset 0
  const uint32_t begin = static_cast<uint32_t>(zip.size());
  zip += entry + "PK\x05\x06";
  Append(&zip, 0, 4);
  Append(&zip, 1, 2);
  Append(&zip, 1, 2);
  Append(&zip, static_cast<uint32_t>(entry.size()), 4);
  Append(&zip, begin, 4);
  Append(&zip, 0, 2);
  return zip;
}

PythonHook PythonHook::Make() {
  PythonHook hook;
  if (HookFile() >= 0) hook.file_ = runtime::FileDescriptor(::memfd_create("cohort-stacks", MFD_CLOEXEC));
  return hook;
}

void PythonHook::AddTo(std::vector<std::string>* environment) const {
  if (!valid()) return;
  const std::string path = std::string(kPathVariable) + "=";
  const std::string file = std::string(kFileVariable) + "=";
  std::string paths = FdPath(HookFile());
  std::erase_if(*environment, [&](const std::string& variable) {
    if (variable.starts_with(path) && variable.size() > path.size()) paths += ":" + variable.substr(path.size());
    return variable.starts_with(path) || variable.starts_with(file);
  });
  environment->push_back(path + paths);
  environment->push_back(file + FdPath(file_.get()));
}

// "dlaunch-listener PID FD THREAD", perhaps behind a line of stacks that another process was writing.
void PythonHook::TakeHello(const std::string& line) {
  const size_t begin = line.rfind(kListens);
  if (begin == std::string::npos) return;
  const std::vector<std::string> words = absl::StrSplit(line.substr(begin), ' ');
  pid_t pid = 0;
  Said said;
  if (words.size() != 4 || !absl::SimpleAtoi(words[1], &pid) || !absl::SimpleAtoi(words[2], &said.fd)) return;
  if (!absl::SimpleAtoi(words[3], &said.main_thread) || pid <= 1 || said.fd < 0) return;
  if (said_.size() >= kMaxSaid) {
    std::erase_if(said_, [this](const auto& known) { return !Catches(known.first); });
  }
  if (said_.size() < kMaxSaid || said_.contains(pid)) said_[pid] = said;
}

void PythonHook::ReadHellos() {
  for (int i = 0; i < kMostReads; ++i) {
    const std::string text = Read(read_, kReadAtOnce);
    const size_t end = text.rfind('\n');
    if (end == std::string::npos) {
      if (text.size() == kReadAtOnce) read_ += static_cast<off_t>(text.size());  // no line of ours
      return;
    }
    const std::vector<std::string> lines = absl::StrSplit(text.substr(0, end), '\n');
    for (const std::string& line : lines) TakeHello(line);
    read_ += static_cast<off_t>(end) + 1;
  }
}

std::vector<PythonHook::Listener> PythonHook::Listeners() {
  ReadHellos();
  std::vector<Listener> listeners;
  for (const auto& [pid, said] : said_) {
    if (listeners.size() < kMaxListeners && Catches(pid)) listeners.push_back({pid, said.main_thread});
  }
  return listeners;
}

bool PythonHook::Catches(pid_t pid) const {
  struct stat file{};
  const auto said = said_.find(pid);
  if (!valid() || said == said_.end() || ::fstat(file_.get(), &file) != 0) return false;
  return HasOpen(pid, said->second.fd, file) &&
         HasSignal("/proc/" + std::to_string(pid) + "/status", "SigCgt:", StackSignal());
}

bool PythonHook::Takes(pid_t pid) {
  std::error_code error;
  size_t looked = 0;
  for (std::filesystem::directory_iterator at("/proc/" + std::to_string(pid) + "/task", error), end;
       !error && at != end && looked < kMaxThreads; at.increment(error), ++looked) {
    const std::string status = at->path().string() + "/status";
    std::error_code gone;
    if (std::filesystem::exists(status, gone) && !HasSignal(status, "SigBlk:", StackSignal())) return true;
  }
  return false;
}

off_t PythonHook::size() const {
  struct stat file{};
  return valid() && ::fstat(file_.get(), &file) == 0 ? file.st_size : 0;
}

std::string PythonHook::Read(off_t begin, size_t most) const {
  std::string text(std::min(most, static_cast<size_t>(std::max<off_t>(0, size() - begin))), '\0');
  const ssize_t got = text.empty() ? 0 : ::pread(file_.get(), text.data(), text.size(), begin);
  text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return text;
}

void PythonHook::Trim() {
  if (size() < kKeep) return;
  ReadHellos();
  if (::ftruncate(file_.get(), 0) == 0) read_ = 0;
}

}  // namespace cohort::launcher
