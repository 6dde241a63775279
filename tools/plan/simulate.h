// `plan simulate`: how long algorithms take on a described network.
#pragma once

#include <cstdint>
#include <string>

namespace cohort::tools {

struct SimulateCommand {
  std::string kind;       // such as all_reduce
  std::string algorithm;  // empty: all that can serve the network
  std::string network;    // for comm::Network::Parse
  int64_t bytes = 1024;
  int32_t pieces = 0;  // 0: what each algorithm needs
  int root = 0;
  bool shortcuts = true;
  bool json = false;
  std::string trace;  // the file for a trace of the prediction; empty: none is written
};

// Explains the columns and the networks of `plan simulate`, for its --help.
std::string SimulateFooter();

// Prints a table, each row when it is done, or JSON; returns the exit status.
int RunSimulate(const SimulateCommand& command);

}  // namespace cohort::tools
