#include "cohort/python/module/call_site.h"

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "cohort/runtime/base/source_places.h"

namespace cohort::python {
namespace {

// Programs that make code for ever must not fill the memory.
constexpr size_t kMaxCode = 8192;

struct Code {
  Ref object;  // keeps the address from being used again
  const char* file = nullptr;
  bool internal = false;
};

class Callers {
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
    found.file = places_.Keep(text);
    for (const std::string& folder : internal_) found.internal |= std::string_view(text).starts_with(folder);
    return &code_.emplace(code, std::move(found)).first->second;
  }

  runtime::SourcePlaces& places() { return places_; }

 private:
  std::vector<std::string> internal_;
  std::unordered_map<PyObject*, Code> code_;
  runtime::SourcePlaces places_{"python"};
};

Callers& All() {
  static auto* const callers = new Callers;  // communicators may read the names until the process ends
  return *callers;
}

}  // namespace

void SetInternalFolders(std::vector<std::string> folders) { All().SetInternalFolders(std::move(folders)); }

std::source_location CallSite() {
  static PyObject* const back_name = PyUnicode_InternFromString("f_back");
  Callers& callers = All();
  Ref frame = Ref::New(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  Ref innermost;  // for a call from nowhere else
  const char* file = nullptr;
  while (frame) {
    const Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.get()))));
    const Code* const found = callers.Find(code.get());
    if (file == nullptr || !found->internal) file = found->file;
    if (!found->internal) break;
    Ref back(PyObject_GetAttr(frame.get(), back_name));
    if (!back) PyErr_Clear();
    if (!innermost) innermost = std::move(frame);
    frame = back && back.get() != Py_None ? std::move(back) : Ref();
  }
  if (!frame) frame = std::move(innermost);
  if (!frame) return callers.places().unknown();
  // Python finds a line by reading the function's table from its start: once, then.
  const int line = PyFrame_GetLineNumber(reinterpret_cast<PyFrameObject*>(frame.get()));
  return callers.places().At(file, static_cast<unsigned>(line));
}

}  // namespace cohort::python
