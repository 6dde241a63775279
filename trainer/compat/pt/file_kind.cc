#include "cohort/trainer/compat/pt/file_kind.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "cohort/trainer/compat/pt/error.h"

namespace cohort::trainer::pt {
namespace {

using std::string_view_literals::operator""sv;

struct Format {
  std::string_view begin;
  std::string_view is;
};

constexpr std::array kFormats = {
    Format{"version https://git-lfs.github.com"sv, "it is a pointer of git-lfs, not the file: run git lfs pull"},
    Format{"\x89HDF\r\n\x1a\n"sv, "it is an HDF5 file: read it with h5py, and torch.save a dictionary of tensors"},
    Format{"\x93NUMPY"sv, "it is a .npy file: torch.save(torch.from_numpy(numpy.load(path)), new_path)"},
    Format{"\x1f\x8b"sv, "it is compressed by gzip: unpack it first"},
    Format{"BZh"sv, "it is compressed by bzip2: unpack it first"},
    Format{"\xfd"
           "7zXZ"sv,
           "it is compressed by xz: unpack it first"},
    Format{"\x28\xb5\x2f\xfd"sv, "it is compressed by zstd: unpack it first"},
    Format{"7z\xbc\xaf"sv, "it is a 7z archive: unpack it first"},
    Format{"Rar!"sv, "it is a RAR archive: unpack it first"},
    Format{"GGUF"sv, "it is a GGUF file of llama.cpp"},
    Format{"PTMF"sv, "it is a model of PyTorch's mobile interpreter"},
    Format{"\x7f"
           "ELF"sv,
           "it is a program or a library, perhaps of torch.compile"},
    Format{"%PDF"sv, "it is a PDF"}};

bool AllBlank(std::string_view bytes) {
  for (const char byte : bytes) {
    if (byte != '\0') return false;
  }
  return true;
}

bool IsText(std::string_view head) {
  for (const char byte : head) {
    const auto letter = static_cast<uint8_t>(byte);
    if (letter < 0x20 && letter != '\n' && letter != '\r' && letter != '\t') return false;
  }
  return true;
}

// Eight bytes of length, then JSON.
bool IsSafetensors(std::string_view head) {
  return head.size() > 9 && head[8] == '{' && (head[9] == '"' || head[9] == ' ' || head[9] == '}') && head[7] == '\0';
}

bool IsOnnx(std::string_view head) {
  return head.size() > 2 && head[0] == '\x08' && head[1] > 0 && head[1] < 20 &&
         (head[2] == '\x12' || head[2] == '\x3a');
}

// In capitals or not.
bool BeginsWith(std::string_view text, std::string_view begin) {
  const auto same = [](char a, char b) { return std::tolower(static_cast<uint8_t>(a)) == b; };
  return text.size() >= begin.size() && std::equal(begin.begin(), begin.end(), text.begin(),
                                                   [&](char wanted, char letter) { return same(letter, wanted); });
}

// The first line of a text, in bounds.
std::string_view FirstLine(std::string_view text) { return text.substr(0, text.find_first_of("\r\n")).substr(0, 60); }

}  // namespace

void RefuseOtherKinds(std::string_view head) {
  if (head.empty()) Refuse("it is empty");
  for (const Format& format : kFormats) {
    if (head.starts_with(format.begin)) Refuse(format.is);
  }
  if (IsSafetensors(head))
    Refuse("it is a safetensors file: in Python, torch.save(safetensors.torch.load_file(path), new_path)");
  if (IsOnnx(head)) Refuse("it is an ONNX model, or another file of protocol buffers");
  if (head.size() > 262 && head.substr(257, 5) == "ustar") {
    Refuse("it is a tar archive; torch.save wrote such files before 2017; convert it in Python: ",
           "torch.save(torch.load(path, map_location=\"cpu\", weights_only=False), new_path)");
  }
  if (AllBlank(head)) Refuse("it begins with zeros, as of a download or a copy that broke off");
  if (IsText(head)) {
    const std::string_view text = head.substr(std::min(head.find_first_not_of(" \r\n\t"), head.size()));
    if (BeginsWith(text, "<!doctype html") || BeginsWith(text, "<html")) {
      Refuse("it is an HTML page, perhaps an error that was downloaded instead of the file");
    }
    if (text.starts_with('<')) Refuse("it is XML, perhaps an error that was downloaded instead of the file");
    if (text.starts_with('{') || text.starts_with('[')) {
      Refuse("it is JSON; an index of a model in several files names the files to read");
    }
    Refuse("it is a text that begins with \"", FirstLine(text), "\"");
  }
  Refuse("it is of an unknown format, neither of torch.save nor another one that is known");
}

void RefuseOtherArchives(const Archive& archive) {
  constexpr std::string_view kConvert = "torch.save(torch.jit.load(path).state_dict(), new_path)";
  if (archive.Has("constants.pkl") || archive.HasFolder("code/")) {
    Refuse("it is a TorchScript archive, of torch.jit.save or of torch::save in C++: load it with torch::jit::load or ",
           "torch::load, or in Python ", kConvert);
  }
  if (archive.Has("data.pkl")) return;
  if (archive.first().ends_with(".npy")) {
    Refuse("it is a .npz file of numpy: torch.save({k: torch.from_numpy(v) for k, v in numpy.load(path).items()}, ",
           "new_path)");
  }
  Refuse("it is a zip archive that torch.save did not write: it has no data.pkl, but ", archive.first());
}

}  // namespace cohort::trainer::pt
