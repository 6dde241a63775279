#include "cohort/trainer/compat/pt/legacy_file.h"

#include <algorithm>
#include <cstring>

#include "cohort/trainer/compat/pt/object_text.h"

namespace cohort::trainer::pt {
namespace {

// The first pickle's number, as protocols 2 and later and as 0 and 1 write it.
constexpr std::string_view kMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
                           kMagicDigits = "119547037146038801333356";
constexpr int64_t kVersion = 1001;
// As much is read at first. Pickles of large models have some megabytes.
constexpr uint64_t kFirst = uint64_t{1} << 20, kMostPickles = uint64_t{1} << 31;

}  // namespace

bool LegacyFile::Is(std::string_view head) {
  return head.starts_with('\x80') || head.starts_with("L119547037146038801333356");
}

LegacyFile::LegacyFile(const FileBytes& file) : file_(file) { FindStorages(RunPickles(file)); }

// How long the pickles are shows when they end.
const Object& LegacyFile::RunPickles(const FileBytes& file) {
  for (uint64_t bytes = kFirst;; bytes *= 4) {
    program_ = file.Head(bytes);
    pickle_ = std::make_unique<Pickle>(program_);
    try {
      const Object& magic = pickle_->Run();
      if (magic.text != kMagic && magic.text != kMagicDigits) {
        Refuse("it is a pickle that torch.save did not write; convert it in Python: ",
               "torch.save(pickle.load(open(path, \"rb\")), new_path)");
      }
      const Object& version = pickle_->Run();
      if (version.number != kVersion) Refuse("its format has version ", version.number, ", which is unknown");
      pickle_->Run();
      root_ = &pickle_->Run();
      return pickle_->Run();
    } catch (const EndsEarly&) {
      if (program_.size() == file.size() || bytes >= kMostPickles) throw;
    }
  }
}

// Each has its number of elements before it. Which type they have is known from those who refer to them.
void LegacyFile::FindStorages(const Object& keys) {
  std::map<std::string, std::string> types;
  for (const Object* reference : pickle_->references()) {
    if (!IsStorage(*reference)) continue;
    const Storage storage = ReadStorage(*reference);
    types.emplace(storage.key, storage.type);
  }
  uint64_t place = pickle_->consumed();
  for (const Object* item : keys.items()) {
    const std::string key = KeyText(*item);
    const auto type = types.find(key);
    if (type == types.end()) Refuse("it brings storage ", key, ", of which its pickle says nothing");
    int64_t elements = 0;
    const std::string count = file_.At(place, sizeof elements);
    std::memcpy(&elements, count.data(), sizeof elements);
    place += sizeof elements;
    const auto element = static_cast<uint64_t>(ElementBytes(type->second));
    if (elements < 0 || static_cast<uint64_t>(elements) > (file_.size() - place) / element) {
      Refuse("it ends within storage ", key, " of ", elements, " elements");
    }
    places_[key] = {.offset = place, .elements = elements};
    place += static_cast<uint64_t>(elements) * element;
  }
}

std::string LegacyFile::Read(const Storage& storage) {
  const auto found = places_.find(storage.key);
  if (found == places_.end()) Refuse("it has no storage ", storage.key);
  if (storage.elements > found->second.elements) {
    Refuse("it says that storage ", storage.key, " has ", storage.elements, " elements, and brings ",
           found->second.elements);
  }
  return file_.At(found->second.offset, static_cast<uint64_t>(storage.elements * ElementBytes(storage.type)));
}

}  // namespace cohort::trainer::pt
