// The directory that a checkpoint is written into until it is complete: `directory`.partial, which then takes the place
// of `directory` at once. One job writes there at a time, and what a killed one has left goes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace cohort::trainer {

// Of one rank; the others write into it by its path.
class PartialDirectory {
 public:
  // Makes it, empty, and the directories that it lies in. Removes what killed runs have left under its name, and under
  // those of other checkpoints beside it where nobody has written for an hour. Throws DistributedError: another job is
  // writing there, or `directory` is there and is neither a checkpoint nor empty.
  explicit PartialDirectory(const std::string& directory);
  // Removes it unless it was published or another job has taken its name.
  ~PartialDirectory();
  PartialDirectory(const PartialDirectory&) = delete;
  PartialDirectory& operator=(const PartialDirectory&) = delete;

  // Throws DistributedError unless it is still there, with this file of this size.
  void ExpectFile(const std::string& name, int64_t bytes) const;

  // Puts it where `directory` is or shall be, at once, and makes that last; what was there is removed. Throws
  // DistributedError.
  void Publish();

 private:
  bool IsStillOurs() const;
  void CheckStillOurs() const;

  std::string directory_;
  std::string path_;
  int fd_ = -1;  // of it, and locked where the file system can
  dev_t device_ = 0;
  ino_t inode_ = 0;
  bool published_ = false;
};

}  // namespace cohort::trainer
