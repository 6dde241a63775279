// A real dlaunch run for tests: output collected as it comes, the processes of the job known by a mark in their
// environment, nothing left behind.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"  // for its users

namespace cohort::launcher {

// The folder of the programs under test: COHORT_TEST_BIN_DIR.
std::string ProgramFolder();

struct DlaunchSurroundings {
  std::vector<std::string> environment = {};  // NAME=VALUE, added
  std::string working_directory = "";         // empty: this process'
  bool close_output_at_once = false;          // nobody reads the standard output
  bool without_output = false;                // it is closed when dlaunch is started
  bool on_terminal = false;                   // standard output and error are terminals of 24 rows and 80 columns
  int input = -1;                             // its standard input, not owned; -1: /dev/null
  std::function<bool()> enter = {};           // called in the new process: moves it elsewhere; false: kNotPermitted
};

// The exit status of a DlaunchProcess whose `enter` returned false.
inline constexpr int kNotPermitted = 97;

// How long a job's processes may take to be gone: ten times what they should.
inline constexpr std::chrono::seconds kGone{20};

class DlaunchProcess {
 public:
  // Starts COHORT_TEST_BIN_DIR/dlaunch with these arguments.
  explicit DlaunchProcess(const std::vector<std::string>& arguments, const DlaunchSurroundings& surroundings = {});
  // Kills what is left.
  ~DlaunchProcess();
  DlaunchProcess(const DlaunchProcess&) = delete;
  DlaunchProcess& operator=(const DlaunchProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Everything printed so far.
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

  // Collects output until `condition` holds; false when the time was over first.
  bool WaitUntil(const std::function<bool()>& condition, std::chrono::seconds timeout = std::chrono::seconds(60));
  bool WaitForOutput(const std::string& text);
  // Collects output until dlaunch has ended. Its exit status as a shell tells it; -1 when the time was over first.
  int Wait(std::chrono::seconds timeout = std::chrono::seconds(60));

  // Living processes of the job, dlaunch included: pid to command line (arguments separated by blanks).
  std::map<pid_t, std::string> Processes() const;
  // Returns processes whose command line holds `text`, ascending.
  std::vector<pid_t> ProcessesWith(const std::string& text) const;
  // The agent of a node of this machine, never its sentinel, which has the agent's name until it is scheduled. Throws
  // std::out_of_range where there is none, so that no signal goes to process 0.
  pid_t AgentProcess(int node) const;
  // The process that has RANK=rank in its environment and leads its process group; 0 when there is none.
  pid_t RankProcess(int rank) const;
  // Waits until nothing of the job lives. Returns the processes left after the time as text; empty: none.
  std::string WaitUntilGone(std::chrono::seconds timeout);

 private:
  void Collect(int timeout_ms);

  std::string mark_;
  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  bool reaped_ = false;
  int status_ = -1;
  std::string out_;
  std::string err_;
};

}  // namespace cohort::launcher
