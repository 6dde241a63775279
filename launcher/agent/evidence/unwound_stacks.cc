#include "cohort/launcher/agent/evidence/unwound_stacks.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elfutils/libdwfl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/launcher/base/printable.h"

namespace cohort::launcher {
namespace {

constexpr size_t kMaxFrames = 48;         // of a thread
constexpr size_t kMaxFunctionName = 160;  // C++ has long ones
constexpr size_t kMaxProcessText = 12u << 10;
constexpr size_t kPythonFramesShown = 1;  // of those in a row: their lines are shown by Python's own stacks

// The calls of libdwfl that are needed.
struct LibDw {
  decltype(&dwfl_begin) begin = nullptr;
  decltype(&dwfl_end) end = nullptr;
  decltype(&dwfl_linux_proc_report) report = nullptr;
  decltype(&dwfl_report_end) report_end = nullptr;
  decltype(&dwfl_linux_proc_find_elf) find_elf = nullptr;
  decltype(&dwfl_attach_state) attach = nullptr;
  decltype(&dwfl_getthread_frames) get_frames = nullptr;
  decltype(&dwfl_frame_pc) frame_pc = nullptr;
  decltype(&dwfl_thread_state_registers) set_registers = nullptr;
  decltype(&dwfl_addrmodule) module_at = nullptr;
  decltype(&dwfl_module_info) module_info = nullptr;
  decltype(&dwfl_module_addrinfo) function_at = nullptr;
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
bool ReadMemory(Dwfl*, Dwarf_Addr address, Dwarf_Word* value, void* snapshot) {
  const auto& threads = static_cast<const ProcessSnapshot*>(snapshot)->threads;
  return std::any_of(threads.begin(), threads.end(), [&](const ThreadSnapshot& thread) {
    const uint64_t at = address - thread.registers[ThreadSnapshot::kStackPointer];
    if (at >= thread.stack.size() || thread.stack.size() - at < sizeof *value) return false;
    std::memcpy(value, thread.stack.data() + at, sizeof *value);
    return true;
  });
}

bool SetRegisters(Dwfl_Thread* thread, void* snapshot) {
  return Dw().set_registers(thread, 0, ThreadSnapshot::kRegisters,
                            static_cast<const ThreadSnapshot*>(snapshot)->registers);
}

// Debug files of distributions are not looked for: that may go over the network.
int FindNoDebugFile(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word, char**) {
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
    static const Dwfl_Callbacks callbacks{Dw().find_elf, &FindNoDebugFile, nullptr, nullptr};
    static const Dwfl_Thread_Callbacks threads{&NextThread, &GetThread, &ReadMemory, &SetRegisters, nullptr, nullptr};
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
  static int OnFrame(Dwfl_Frame* frame, void* self) {
    Dwarf_Addr pc = 0;
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
    Dwfl_Module* const module = Dw().module_at(process_, pc);
    if (module == nullptr) return known->second = {"?", "?"};
    Dwarf_Addr begin = 0;
    GElf_Off offset = 0;
    GElf_Sym symbol{};
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

}  // namespace cohort::launcher
