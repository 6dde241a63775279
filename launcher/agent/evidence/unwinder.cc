#include "cohort/launcher/agent/evidence/unwinder.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include "cohort/launcher/base/printable.h"

namespace cohort::launcher {
namespace {

constexpr char kUnwinderCommand[] = "unwinder";
constexpr char kAgentArgument[] = "--agent=";
constexpr size_t kMaxFrames = 48;         // of a thread
constexpr size_t kMaxFunctionName = 160;  // C++ has long ones
constexpr size_t kMaxProcessText = 12u << 10;
constexpr size_t kPythonFramesShown = 1;  // of those in a row: their lines are shown by Python's own stacks

bool unwinder_offered = false;

// The few calls of libdwfl that are needed, by its stable ABI (elfutils/libdwfl.h is not required to build).
using Dwfl = void;
using DwflModule = void;
using DwflThread = void;
using DwflFrame = void;

struct DwflCallbacks {
  int (*find_elf)(DwflModule*, void**, const char*, uint64_t, char**, void**);
  int (*find_debuginfo)(DwflModule*, void**, const char*, uint64_t, const char*, const char*, uint32_t, char**);
  int (*section_address)(DwflModule*, void**, const char*, uint64_t, const char*, uint32_t, const void*, uint64_t*);
  char** debuginfo_path;
};

struct ThreadCallbacks {
  pid_t (*next_thread)(Dwfl*, void*, void**);
  bool (*get_thread)(Dwfl*, pid_t, void*, void**);
  bool (*memory_read)(Dwfl*, uint64_t, uint64_t*, void*);
  bool (*set_initial_registers)(DwflThread*, void*);
  void (*detach)(Dwfl*, void*);
  void (*thread_detach)(DwflThread*, void*);
};

struct LibDw {
  Dwfl* (*begin)(const DwflCallbacks*) = nullptr;
  void (*end)(Dwfl*) = nullptr;
  int (*report)(Dwfl*, pid_t) = nullptr;
  int (*report_end)(Dwfl*, void*, void*) = nullptr;
  decltype(DwflCallbacks::find_elf) find_elf = nullptr;
  bool (*attach)(Dwfl*, void*, pid_t, const ThreadCallbacks*, void*) = nullptr;
  int (*get_frames)(Dwfl*, pid_t, int (*)(DwflFrame*, void*), void*) = nullptr;
  bool (*frame_pc)(DwflFrame*, uint64_t*, bool*) = nullptr;
  bool (*set_registers)(DwflThread*, int, unsigned, const uint64_t*) = nullptr;
  DwflModule* (*module_at)(Dwfl*, uint64_t) = nullptr;
  const char* (*module_info)(DwflModule*, void***, uint64_t*, uint64_t*, uint64_t*, uint64_t*, const char**,
                             const char**) = nullptr;
  const char* (*function_at)(DwflModule*, uint64_t, uint64_t*, Elf64_Sym*, uint32_t*, void**, uint64_t*) = nullptr;
  bool whole = false;

  LibDw() {
    void* const library = ::dlopen("libdw.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto load = [library](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(::dlsym(library, name));
      return *function != nullptr;
    };
    whole = load("dwfl_begin", &begin) && load("dwfl_end", &end) && load("dwfl_linux_proc_report", &report) &&
            load("dwfl_report_end", &report_end) && load("dwfl_linux_proc_find_elf", &find_elf) &&
            load("dwfl_attach_state", &attach) && load("dwfl_getthread_frames", &get_frames) &&
            load("dwfl_frame_pc", &frame_pc) && load("dwfl_thread_state_registers", &set_registers) &&
            load("dwfl_addrmodule", &module_at) && load("dwfl_module_info", &module_info) &&
            load("dwfl_module_addrinfo", &function_at);
  }
};

const LibDw& Dw() {
  static const LibDw library;
  return library;
}

const ThreadSnapshot* FindThread(const ProcessSnapshot& snapshot, pid_t thread) {
  const auto found = std::find_if(snapshot.threads.begin(), snapshot.threads.end(),
                                  [thread](const ThreadSnapshot& one) { return one.thread == thread; });
  return found == snapshot.threads.end() ? nullptr : &*found;
}

bool GetThread(Dwfl*, pid_t thread, void* snapshot, void** found) {
  *found = const_cast<ThreadSnapshot*>(FindThread(*static_cast<const ProcessSnapshot*>(snapshot), thread));
  return *found != nullptr;
}

pid_t NextThread(Dwfl*, void*, void**) { return 0; }

// Only stacks are asked for: the rest is in files.
bool ReadMemory(Dwfl*, uint64_t address, uint64_t* value, void* snapshot) {
  const auto& threads = static_cast<const ProcessSnapshot*>(snapshot)->threads;
  return std::any_of(threads.begin(), threads.end(), [&](const ThreadSnapshot& thread) {
    const uint64_t at = address - thread.registers[ThreadSnapshot::kStackPointer];
    if (at >= thread.stack.size() || thread.stack.size() - at < sizeof *value) return false;
    std::memcpy(value, thread.stack.data() + at, sizeof *value);
    return true;
  });
}

bool SetRegisters(DwflThread* thread, void* snapshot) {
  return Dw().set_registers(thread, 0, ThreadSnapshot::kRegisters,
                            static_cast<const ThreadSnapshot*>(snapshot)->registers);
}

// Debug files of distributions are not looked for: that may go over the network.
int FindNoDebugFile(DwflModule*, void**, const char*, uint64_t, const char*, const char*, uint32_t, char**) {
  return -1;
}

std::string BaseName(const char* path) {
  const std::string_view whole = path == nullptr ? "?" : path;
  return std::string(whole.substr(whole.rfind('/') + 1));
}

std::string Demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                          &std::free);
  std::string text = status == 0 && plain != nullptr ? plain.get() : name;
  if (text.size() > kMaxFunctionName) text = text.substr(0, kMaxFunctionName) + "...";
  return text;
}

std::string Hexadecimal(uint64_t number) {
  char digits[20];
  std::snprintf(digits, sizeof digits, "0x%llx", static_cast<unsigned long long>(number));
  return digits;
}

struct NamedFrame {
  std::string function;
  std::string module;
};

// One process with its modules.
class UnwoundProcess {
 public:
  explicit UnwoundProcess(const ProcessSnapshot& snapshot) : snapshot_(snapshot) {
    static const DwflCallbacks callbacks{Dw().find_elf, &FindNoDebugFile, nullptr, nullptr};
    static const ThreadCallbacks threads{&NextThread, &GetThread, &ReadMemory, &SetRegisters, nullptr, nullptr};
    process_ = Dw().begin(&callbacks);
    if (process_ == nullptr) return;
    attached_ = Dw().report(process_, snapshot.pid) == 0 && Dw().report_end(process_, nullptr, nullptr) == 0 &&
                Dw().attach(process_, nullptr, snapshot.pid, &threads, const_cast<ProcessSnapshot*>(&snapshot_));
  }
  ~UnwoundProcess() {
    if (process_ != nullptr) Dw().end(process_);
  }
  UnwoundProcess(const UnwoundProcess&) = delete;
  UnwoundProcess& operator=(const UnwoundProcess&) = delete;

  // Innermost first.
  std::vector<NamedFrame> FramesOf(const ThreadSnapshot& thread) {
    frames_.clear();
    if (attached_) Dw().get_frames(process_, thread.thread, &OnFrame, this);
    return std::move(frames_);
  }

 private:
  static int OnFrame(DwflFrame* frame, void* self) {
    uint64_t pc = 0;
    bool is_activation = false;
    auto& frames = static_cast<UnwoundProcess*>(self)->frames_;
    if (!Dw().frame_pc(frame, &pc, &is_activation) || frames.size() >= kMaxFrames) return 1;
    if (!is_activation) --pc;  // in the call, not behind it
    frames.push_back(static_cast<UnwoundProcess*>(self)->NameOf(pc));
    return 0;
  }

  const NamedFrame& NameOf(uint64_t pc) {
    const auto [known, fresh] = names_.try_emplace(pc);
    if (!fresh) return known->second;
    DwflModule* const module = Dw().module_at(process_, pc);
    if (module == nullptr) return known->second = {"?", "?"};
    uint64_t begin = 0, offset = 0;
    Elf64_Sym symbol{};
    const char* const path = Dw().module_info(module, nullptr, &begin, nullptr, nullptr, nullptr, nullptr, nullptr);
    const char* const name = Dw().function_at(module, pc, &offset, &symbol, nullptr, nullptr, nullptr);
    return known->second = {name == nullptr ? Hexadecimal(pc - begin) : Printable(Demangled(name)),
                            Printable(BaseName(path))};
  }

  const ProcessSnapshot& snapshot_;
  Dwfl* process_ = nullptr;
  bool attached_ = false;
  std::vector<NamedFrame> frames_;
  std::map<uint64_t, NamedFrame> names_;
};

bool IsPython(const NamedFrame& frame) {
  return frame.module.starts_with("python3") || frame.module.starts_with("libpython3");
}

bool IsOfSystem(const NamedFrame& frame) {
  return frame.module.starts_with("libc.so") || frame.module.starts_with("libstdc++.so") ||
         frame.module.starts_with("libpthread") || frame.function == "_start";
}

// Without what every thread begins with.
std::string LinesOfFrames(std::vector<NamedFrame> frames) {
  std::string text;
  const bool is_cut = frames.size() >= kMaxFrames;
  if (!is_cut && !std::all_of(frames.begin(), frames.end(), IsOfSystem)) {
    while (IsOfSystem(frames.back())) frames.pop_back();
  }
  for (size_t i = 0; i < frames.size();) {
    size_t end = i + 1;
    while (IsPython(frames[i]) && end < frames.size() && IsPython(frames[end])) ++end;
    text += "  " + frames[i].function + " (" + frames[i].module + ")\n";
    const size_t left_out = end - i - kPythonFramesShown;
    if (left_out > 0) text += "  ... and " + std::to_string(left_out) + " more of Python\n";
    i = end;
  }
  if (is_cut) text += "  ... (cut)\n";
  return text;
}

void SendAll(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::write(socket, bytes.data(), bytes.size());
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

}  // namespace

bool HasUnwinder() { return Dw().whole; }

std::string UnwindSnapshot(const ProcessSnapshot& snapshot) {
  if (!HasUnwinder()) return "";
  struct Place {
    std::string name, lines;
    size_t count = 0;
  };
  std::vector<Place> places;
  UnwoundProcess process(snapshot);
  for (const ThreadSnapshot& thread : snapshot.threads) {
    const std::string lines = LinesOfFrames(process.FramesOf(thread));
    if (lines.empty()) continue;
    const auto known = std::find_if(places.begin(), places.end(), [&](const Place& place) {
      return place.name == thread.name && place.lines == lines;
    });
    if (known == places.end()) {
      places.push_back({thread.name, lines, 1});
    } else {
      ++known->count;
    }
  }
  std::string text;
  for (const Place& place : places) {
    text += (place.count == 1 ? "thread " : std::to_string(place.count) + " threads ") + Printable(place.name) + ":\n" +
            place.lines;
  }
  if (text.size() > kMaxProcessText) {
    text.resize(text.rfind('\n', kMaxProcessText) + 1);
    text += "... (cut)\n";
  }
  return text;
}

std::vector<UnwoundRank> ReadUnwound(const std::string& output) {
  std::vector<UnwoundRank> ranks;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('=')) {
      UnwoundRank rank;
      std::from_chars(line.data() + 1, line.data() + line.size(), rank.rank);
      ranks.push_back(std::move(rank));
    } else if (!ranks.empty()) {
      ranks.back().text += line + "\n";
    }
  }
  return ranks;
}

// A user's program may have that name, and arguments to match; but its parent has another number.
bool IsUnwinderCommand(int argc, char** argv) {
  return argc == 4 && std::strcmp(argv[1], kUnwinderCommand) == 0 && std::atoi(argv[2]) > 0 &&
         std::string_view(argv[3]) == kAgentArgument + std::to_string(::getppid());
}

int RunUnwinder(char** argv) {
  const long limit_ms = std::atol(argv[2]);
  const itimerval limit{{0, 0}, {limit_ms / 1000, limit_ms % 1000 * 1000}};
  ::signal(SIGALRM, SIG_DFL);
  ::setitimer(ITIMER_REAL, &limit, nullptr);
  if (!HasUnwinder()) return 1;
  SendAll(STDIN_FILENO, "!");
  std::string bytes;
  std::array<char, 65536> part{};
  for (ssize_t got = 0; (got = ::read(STDIN_FILENO, part.data(), part.size())) > 0;) {
    bytes.append(part.data(), static_cast<size_t>(got));
    while (const auto snapshot = ReadSnapshot(&bytes)) {
      SendAll(STDOUT_FILENO, "=" + std::to_string(snapshot->rank) + "\n" + UnwindSnapshot(*snapshot));
    }
  }
  return 0;
}

void OfferUnwinder() { unwinder_offered = true; }
bool OffersUnwinder() { return unwinder_offered; }

bool StartUnwinder(int input, int output, std::chrono::milliseconds limit) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  if (::posix_spawn_file_actions_init(&actions) != 0) return false;
  if (::posix_spawnattr_init(&attributes) != 0) {
    ::posix_spawn_file_actions_destroy(&actions);
    return false;
  }
  sigset_t none;
  ::sigemptyset(&none);
  sigset_t defaults;
  ::sigemptyset(&defaults);
  ::sigaddset(&defaults, SIGPIPE);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  ::posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string name = "dlaunch", command = kUnwinderCommand, milliseconds = std::to_string(limit.count());
  std::string agent = kAgentArgument + std::to_string(::getpid());
  char* const arguments[] = {name.data(), command.data(), milliseconds.data(), agent.data(), nullptr};
  pid_t pid = 0;
  const bool started = ::posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, arguments, environ) == 0;
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  return started;
}

}  // namespace cohort::launcher
