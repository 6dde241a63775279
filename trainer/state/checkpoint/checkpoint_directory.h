// The directory that a checkpoint is written into until it is complete: `directory`.partial, which then takes the place
// of `directory` at once. One job writes there at a time, and what a killed one has left goes.
//
// Some file systems cannot exchange two directories (NFS). There the old checkpoint becomes `directory`.replaced and
// the new one becomes `directory`. Then the old one goes. One of them is complete whenever the job is killed. Readers
// take `directory` if it is there, and find it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace cohort::trainer {

// Returns the path at which the checkpoint `directory` can be read: its own, or the one it was put aside to. Throws
// nothing.
std::string ReadablePath(const std::string& directory);
// Which checkpoint's an entry of a folder is: of one that was put aside, the name before; empty for one that is being
// written.
std::string DirectoryOf(const std::string& path);
// Whether there is a directory with an index or with a rank's tensors. Throws nothing.
bool IsCheckpoint(const std::string& path);
// Unless there is something else in it than saving has written. Throws DistributedError.
void RemoveCheckpoint(const std::string& directory);

// The partial directory of one rank; the others write into it by its path.
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

  // Writes the index, which is complete when the directory is published. Throws DistributedError.
  void WriteIndex(std::string_view text) const;

  // Throws DistributedError unless it is still there, with this file of this size.
  void ExpectFile(const std::string& name, int64_t bytes) const;

  // Puts it where `directory` is or shall be, at once where the file system can, and makes that last; what was there is
  // removed. Throws DistributedError.
  void Publish();

 private:
  bool IsStillOurs() const;
  void CheckStillOurs() const;
  void ReplaceInSteps();

  std::string directory_;
  std::string path_;
  int fd_ = -1;  // of it, and locked where the file system can
  dev_t device_ = 0;
  ino_t inode_ = 0;
  bool published_ = false;
};

}  // namespace cohort::trainer
