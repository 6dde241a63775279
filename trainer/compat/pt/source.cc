#include "cohort/trainer/compat/pt/source.h"

#include <string_view>

#include "cohort/trainer/compat/pt/archive.h"
#include "cohort/trainer/compat/pt/file_kind.h"
#include "cohort/trainer/compat/pt/legacy_file.h"

namespace cohort::trainer::pt {
namespace {

class ArchiveSource : public Source {
 public:
  explicit ArchiveSource(const FileBytes& file) : archive_(file) {
    RefuseOtherArchives(archive_);
    program_ = archive_.Read("data.pkl");
    pickle_ = std::make_unique<Pickle>(program_);
    root_ = &pickle_->Run();
    if (!archive_.Has("byteorder")) return;
    const std::string order = archive_.Read("byteorder");
    if (order != "little" && order != "big") Refuse("its byte order is unknown: ", order);
    big_endian_ = order == "big";
  }

  const Object& root() const override { return *root_; }
  bool big_endian() const override { return big_endian_; }
  std::string Read(const Storage& storage) override {
    std::string bytes = archive_.Read("data/" + storage.key);
    const auto element = static_cast<size_t>(ElementBytes(storage.type));
    const size_t needed = static_cast<size_t>(storage.elements) * element;
    if (bytes.size() < needed) {
      Refuse("it says that storage ", storage.key, " has ", storage.elements, " elements, and brings ",
             bytes.size() / element);
    }
    bytes.resize(needed);
    return bytes;
  }

 private:
  Archive archive_;
  std::string program_;
  std::unique_ptr<Pickle> pickle_;
  const Object* root_ = nullptr;
  bool big_endian_ = false;
};

}  // namespace

std::unique_ptr<Source> OpenSource(const FileBytes& file) {
  const std::string head = file.Head(kKindBytes);
  if (std::string_view(head).starts_with("PK")) return std::make_unique<ArchiveSource>(file);
  if (LegacyFile::Is(head)) return std::make_unique<LegacyFile>(file);
  RefuseOtherKinds(head);
}

}  // namespace cohort::trainer::pt
