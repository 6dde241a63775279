#include "cohort/python/module/call_site.h"

#include <bit>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace cohort::python {
namespace {

// The object behind a std::source_location, as GCC and Clang lay it out for libstdc++ (bits of the C++ ABI: compilers
// emit it, the library reads it). The standard has no other way to make one from names that are not C++.
struct Place {
  const char* file;
  const char* function;
  unsigned line;
  unsigned column;
};
static_assert(sizeof(std::source_location) == sizeof(const Place*));

std::source_location LocationOf(const Place* place) { return std::bit_cast<std::source_location>(place); }

// Bounds: programs that make code for ever must not fill the memory.
constexpr size_t kMaxPlaces = 65'536;
constexpr size_t kMaxCode = 8192;

struct Code {
  Ref object;  // keeps the address from being used again
  const char* file = nullptr;
  bool internal = false;
};

class Places {
 public:
  void SetInternalFolders(std::vector<std::string> folders) {
    internal_ = std::move(folders);
    code_.clear();
  }

  const Code* Find(PyObject* code) {
    if (const auto known = code_.find(code); known != code_.end()) return &known->second;
    if (code_.size() >= kMaxCode) code_.clear();
    const Ref name(PyObject_GetAttrString(code, "co_filename"));
    const char* text = name ? PyUnicode_AsUTF8AndSize(name.get(), nullptr) : nullptr;
    if (text == nullptr) {
      PyErr_Clear();
      text = "python";
    }
    Code found;
    found.object = Ref::New(code);
    found.file = Keep(text);
    for (const std::string& folder : internal_) found.internal |= std::string_view(text).starts_with(folder);
    return &code_.emplace(code, std::move(found)).first->second;
  }

  std::source_location At(const char* file, unsigned line) {
    const auto key = std::pair(file, line);
    if (const auto known = by_line_.find(key); known != by_line_.end()) return LocationOf(known->second);
    if (places_.size() >= kMaxPlaces) return LocationOf(&unknown_);
    places_.push_back({file, "", line, 0});
    by_line_.emplace(key, &places_.back());
    return LocationOf(&places_.back());
  }

  std::source_location Unknown() const { return LocationOf(&unknown_); }

 private:
  const char* Keep(const char* text) {
    if (files_.size() >= kMaxPlaces) return "python";
    return files_.insert(text).first->c_str();
  }

  static constexpr Place unknown_{"python", "", 0, 0};
  std::vector<std::string> internal_;
  std::unordered_map<PyObject*, Code> code_;
  std::set<std::string> files_;  // never shrinks: communicators remember the addresses
  std::deque<Place> places_;
  std::map<std::pair<const char*, unsigned>, const Place*> by_line_;
};

Places& All() {
  static auto* const places = new Places;  // communicators may read the names until the process ends
  return *places;
}

}  // namespace

void SetInternalFolders(std::vector<std::string> folders) { All().SetInternalFolders(std::move(folders)); }

std::source_location CallSite() {
  static PyObject* const back_name = PyUnicode_InternFromString("f_back");
  Places& places = All();
  Ref frame = Ref::New(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  Ref innermost;  // for a call from nowhere else
  const char* file = nullptr;
  while (frame) {
    const Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.get()))));
    const Code* const found = places.Find(code.get());
    if (file == nullptr || !found->internal) file = found->file;
    if (!found->internal) break;
    Ref back(PyObject_GetAttr(frame.get(), back_name));
    if (!back) PyErr_Clear();
    if (!innermost) innermost = std::move(frame);
    frame = back && back.get() != Py_None ? std::move(back) : Ref();
  }
  if (!frame) frame = std::move(innermost);
  if (!frame) return places.Unknown();
  // Python finds a line by reading the function's table from its start: once, then.
  const int line = PyFrame_GetLineNumber(reinterpret_cast<PyFrameObject*>(frame.get()));
  return places.At(file, static_cast<unsigned>(line));
}

}  // namespace cohort::python
