// Files that torch.save wrote before PyTorch 1.6, and writes with _use_new_zipfile_serialization=False: five pickles
// (magic number, version, sizes of types, the values, the keys of storages), then the storages.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "cohort/trainer/compat/pt/source.h"

namespace cohort::trainer::pt {

class LegacyFile : public Source {
 public:
  // Whether a file that begins so may be one.
  static bool Is(std::string_view head);

  // `file` outlives this. Throws Error, for pickles of other programs too.
  explicit LegacyFile(const FileBytes& file);

  const Object& root() const override { return *root_; }
  std::string Read(const Storage& storage) override;

 private:
  struct Place {
    uint64_t offset = 0;
    int64_t elements = 0;
  };

  // Returns the keys of the storages, in the order in which these follow.
  const Object& RunPickles(const FileBytes& file);
  void FindStorages(const Object& keys);

  const FileBytes& file_;
  std::string program_;  // the part of the file that the pickles are in
  std::unique_ptr<Pickle> pickle_;
  const Object* root_ = nullptr;
  std::map<std::string, Place> places_;
};

}  // namespace cohort::trainer::pt
