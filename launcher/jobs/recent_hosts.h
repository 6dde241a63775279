// The hosts of the last jobs that ran by ssh, for completion: names in a file of the user's, the latest first.
//
// The file is $XDG_STATE_HOME/dlaunch/hosts, or ~/.local/state/dlaunch/hosts. Nothing else reads it. Without it, and
// where it cannot be written, jobs run all the same.
#pragma once

#include <string>
#include <vector>

namespace cohort::launcher {

inline constexpr size_t kMostRecentHosts = 512;

// `latest`, then those of `before` that are not among them: kMostRecentHosts at the most. Names with other characters
// than letters, digits and those of "-_.:@[]%" are left out. Pure.
std::vector<std::string> MergeHosts(const std::vector<std::string>& latest, const std::vector<std::string>& before);

// Writes them to the file. Waits a second at the most for a file system that does not answer, and says nothing.
void RememberHosts(const std::vector<std::string>& hosts);

// The hosts in the file, up to its limit: none where it is no regular file, or where its file system does not answer
// within a second.
std::vector<std::string> RecentHosts();

}  // namespace cohort::launcher
