#include "cohort/launcher/agent/stacks/python_threads.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "cohort/launcher/agent/stacks/process_memory.h"
#include "cohort/launcher/agent/stacks/python_layout.h"
#include "cohort/launcher/agent/stacks/python_lines.h"
#include "cohort/launcher/agent/stacks/python_place.h"

namespace cohort::launcher {
namespace {

constexpr int kMostInterpreters = 8;
constexpr size_t kMostThreads = 256;
constexpr size_t kMostFrames = 100;  // of a thread
constexpr int kMostLinks = 1000;     // that are followed for them
constexpr uint64_t kMostText = 4096;
constexpr uint64_t kMostTable = 1u << 20;
constexpr int kTries = 3;  // of a stack that changes as it is read

void AppendUtf8(uint32_t code, std::string* text) {
  if (code < 0x80) {
    text->push_back(static_cast<char>(code));
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  static constexpr unsigned kHeads[] = {0, 0xc0, 0xe0, 0xf0};
  text->push_back(static_cast<char>(kHeads[more] | (code >> (6 * more))));
  for (int i = more - 1; i >= 0; --i) text->push_back(static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3f)));
}

class PythonReader {
 public:
  PythonReader(pid_t pid, const ProcessMemory& memory, uint64_t runtime, const PythonLayout& layout)
      : pid_(pid), memory_(memory), runtime_(runtime), layout_(layout) {}

  // False where what was read can't be.
  bool Read(bool main_only, std::vector<PythonThread>* threads);

 private:
  struct Code {
    std::string file, name, table;
    int first_line = 0;
  };

  std::optional<uint64_t> Pointer(uint64_t at) const { return memory_.Get<uint64_t>(at); }
  std::optional<std::string> Text(uint64_t at) const;
  std::optional<std::string> Bytes(uint64_t at) const;
  const Code* CodeAt(uint64_t at);
  std::optional<int64_t> OffsetOf(uint64_t frame, uint64_t code) const;
  bool ReadFrames(uint64_t thread, PythonThread* out);
  bool ReadThreads(uint64_t interpreter, bool main_only, std::vector<PythonThread>* threads);

  pid_t pid_;
  const ProcessMemory& memory_;
  uint64_t runtime_;
  const PythonLayout& layout_;
  std::map<uint64_t, Code> codes_;
};

// Its state says how wide its characters are, three bits, and whether they lie behind it and are all ASCII. What is
// before these bits has 2, 8 or 16, by version and build.
std::optional<std::string> PythonReader::Text(uint64_t at) const {
  const auto length = memory_.Get<uint64_t>(at + layout_.text_length);
  const auto state = memory_.Get<uint32_t>(at + layout_.text_state);
  if (!length || !state || *length > kMostText) return std::nullopt;
  for (const int shift : {2, 8, 16}) {
    const uint32_t width = (*state >> shift) & 7;
    const bool compact = ((*state >> (shift + 3)) & 1) != 0, ascii = ((*state >> (shift + 4)) & 1) != 0;
    if (!compact || (width != 1 && width != 2 && width != 4) || (ascii && width != 1)) continue;
    std::string raw(*length * width, '\0');
    if (!memory_.Read(at + (ascii ? layout_.ascii_text : layout_.other_text), raw.data(), raw.size())) break;
    if (ascii) return raw;
    std::string text;
    for (size_t i = 0; i < raw.size(); i += width) {
      uint32_t code = 0;
      for (size_t k = 0; k < width; ++k) code |= static_cast<uint32_t>(static_cast<uint8_t>(raw[i + k])) << (8 * k);
      AppendUtf8(std::min(code, 0x10ffffu), &text);
    }
    return text;
  }
  return std::nullopt;
}

std::optional<std::string> PythonReader::Bytes(uint64_t at) const {
  const auto size = memory_.Get<uint64_t>(at + layout_.bytes_size);
  if (!size || *size > kMostTable) return std::nullopt;
  std::string bytes(*size, '\0');
  if (!memory_.Read(at + layout_.bytes, bytes.data(), bytes.size())) return std::nullopt;
  return bytes;
}

const PythonReader::Code* PythonReader::CodeAt(uint64_t at) {
  const auto known = codes_.find(at);
  if (known != codes_.end()) return &known->second;
  const auto file_at = Pointer(at + layout_.file_name), name_at = Pointer(at + layout_.name);
  const auto table_at = Pointer(at + layout_.line_table);
  const auto first_line = memory_.Get<int32_t>(at + layout_.first_line);
  if (!file_at || !name_at || !table_at || !first_line) return nullptr;
  std::optional<std::string> file = Text(*file_at), name = Text(*name_at), table = Bytes(*table_at);
  if (!file || !name || !table) return nullptr;
  return &codes_.emplace(at, Code{*std::move(file), *std::move(name), *std::move(table), *first_line}).first->second;
}

// The instruction at which a frame is, in bytes from the beginning of its code.
std::optional<int64_t> PythonReader::OffsetOf(uint64_t frame, uint64_t code) const {
  if (layout_.instructions == 0) {
    const auto number = memory_.Get<int32_t>(frame + layout_.instruction);
    if (!number) return std::nullopt;
    return *number * static_cast<int64_t>(layout_.instruction_bytes);
  }
  const auto instruction = Pointer(frame + layout_.instruction);
  if (!instruction) return std::nullopt;
  uint64_t begin = code + layout_.instructions;
  if (layout_.copies != 0) {
    const auto index = memory_.Get<int32_t>(frame + layout_.copy_index);
    const auto copies = Pointer(code + layout_.copies);
    if (!index || !copies || *index < 0) return std::nullopt;
    if (*copies != 0) begin = Pointer(*copies + sizeof(uint64_t) * (1 + static_cast<uint64_t>(*index))).value_or(begin);
  }
  return static_cast<int64_t>(*instruction - begin);
}

bool PythonReader::ReadFrames(uint64_t thread, PythonThread* out) {
  constexpr uint8_t kOwnersOfPython = 3;  // frames of others stand for calls from C
  constexpr uint64_t kTags = 7;           // low bits of a pointer, which some versions use
  std::optional<uint64_t> frame = Pointer(thread + layout_.frame);
  if (frame && *frame != 0 && layout_.frame_behind) frame = Pointer(*frame + *layout_.frame_behind);
  for (int links = 0; frame && *frame != 0; ++links) {
    if (links == kMostLinks || out->frames.size() == kMostFrames) {
      out->cut = true;
      return true;
    }
    const auto code_at = Pointer(*frame + layout_.code);
    const auto owner = layout_.owner == 0 ? std::optional<uint8_t>(0) : memory_.Get<uint8_t>(*frame + layout_.owner);
    if (!code_at || !owner) return false;
    if (*owner < kOwnersOfPython) {
      const Code* const code = CodeAt(*code_at & ~kTags);
      const auto offset = OffsetOf(*frame, *code_at & ~kTags);
      if (code == nullptr || !offset) return false;
      out->frames.push_back(
          {code->file, LineOfInstruction(layout_.table_form, code->table, code->first_line, *offset), code->name});
    }
    frame = Pointer(*frame + layout_.previous);
  }
  return frame.has_value();
}

bool PythonReader::ReadThreads(uint64_t interpreter, bool main_only, std::vector<PythonThread>* threads) {
  std::vector<uint64_t> found;
  std::optional<uint64_t> thread = Pointer(interpreter + layout_.first_thread);
  for (; thread && *thread != 0 && found.size() < kMostThreads; thread = Pointer(*thread + layout_.next_thread)) {
    found.push_back(*thread);
  }
  if (!thread) return false;
  const auto is_first = [this](uint64_t at) {
    return layout_.native_thread_id != 0 &&
           memory_.Get<uint64_t>(at + layout_.native_thread_id) == static_cast<uint64_t>(pid_);
  };
  const auto first = std::find_if(found.begin(), found.end(), is_first);
  for (const uint64_t at : found) {
    PythonThread read;
    read.is_main = at == (first == found.end() ? found.back() : *first);  // the oldest where none says
    if (main_only && !read.is_main) continue;
    const bool whole = ReadFrames(at, &read);
    read.cut = read.cut || !whole;
    threads->push_back(std::move(read));
    if (!whole) return false;
  }
  return true;
}

bool PythonReader::Read(bool main_only, std::vector<PythonThread>* threads) {
  codes_.clear();
  threads->clear();
  std::optional<uint64_t> interpreter = Pointer(runtime_ + layout_.first_interpreter);
  for (int i = 0; interpreter && *interpreter != 0 && i < kMostInterpreters; ++i) {
    if (!ReadThreads(*interpreter, main_only, threads)) return false;
    interpreter = Pointer(*interpreter + layout_.next_interpreter);
  }
  return interpreter.has_value();
}

std::optional<PythonLayout> LayoutOf(const ProcessMemory& memory, const PythonPlace& place) {
  std::vector<uint64_t> numbers(kDebugOffsets);
  if (memory.Read(place.runtime, numbers.data(), numbers.size() * sizeof numbers[0])) {
    if (std::optional<PythonLayout> told = LayoutFromOffsets(numbers)) return told;
  }
  return LayoutOfVersion(place.version);
}

}  // namespace

struct PythonWatch::Python {
  Python(pid_t its_pid, ProcessMemory its_memory) : pid(its_pid), memory(std::move(its_memory)) {}
  const pid_t pid;
  const ProcessMemory memory;
  PythonPlace place;
  PythonLayout layout;
};

PythonWatch::PythonWatch(std::unique_ptr<Python> python) : python_(std::move(python)) {}

PythonWatch::~PythonWatch() = default;

std::unique_ptr<PythonWatch> PythonWatch::Of(pid_t pid) {
  auto python = std::make_unique<Python>(pid, ProcessMemory(pid));
  const std::optional<PythonPlace> place = FindPython(pid, python->memory);
  const std::optional<PythonLayout> layout = place ? LayoutOf(python->memory, *place) : std::nullopt;
  if (!layout) return nullptr;
  python->place = *place;
  python->layout = *layout;
  return std::unique_ptr<PythonWatch>(new PythonWatch(std::move(python)));
}

std::vector<PythonThread> PythonWatch::Threads(bool main_only) const {
  PythonReader reader(python_->pid, python_->memory, python_->place.runtime, python_->layout);
  std::vector<PythonThread> threads;
  for (int i = 0; i < kTries && !reader.Read(main_only, &threads); ++i) continue;
  return threads;
}

std::optional<bool> PythonWatch::CollectsGarbage() const {
  const PythonLayout& layout = python_->layout;
  if (layout.collecting == 0) return std::nullopt;
  const auto interpreter = python_->memory.Get<uint64_t>(python_->place.runtime + layout.first_interpreter);
  const auto collecting =
      interpreter ? python_->memory.Get<int32_t>(*interpreter + layout.collecting) : std::optional<int32_t>();
  if (!collecting) return std::nullopt;
  return *collecting != 0;
}

std::optional<std::vector<PythonThread>> ReadPythonThreads(pid_t pid, bool main_only) {
  const std::unique_ptr<PythonWatch> watch = PythonWatch::Of(pid);
  if (watch == nullptr) return std::nullopt;
  return watch->Threads(main_only);
}

}  // namespace cohort::launcher
