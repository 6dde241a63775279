// A process of its own that reads threads' stacks (unwound_stacks.h). It reads what strangers built, so an agent begins
// one as this program begins:
//
//   agent's thread                          dlaunch unwinder LIMIT --agent=PID
//                   ◄── one byte: libdw is there ──
//   snapshots       ─── standard input ──►            ─── standard output ──► the agent's loop
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace cohort::launcher {

// A part of an unwinder's output: "=RANK", then the lines of that rank.
struct UnwoundRank {
  uint32_t rank = 0;
  std::string text;
};
std::vector<UnwoundRank> ReadUnwound(const std::string& output);

// Whether main was called as an unwinder.
bool IsUnwinderCommand(int argc, char** argv);
// Unwinds what comes until the standard input ends, or the limit is over. Returns the exit status.
int RunUnwinder(char** argv);

// Lets this process begin unwinders: its main looks at IsUnwinderCommand. Without it no native stacks are shown. Call
// it before any thread exists.
void OfferUnwinder();
bool OffersUnwinder();
// Begins one, with these descriptors as its standard input and output. False if there can't be one.
bool StartUnwinder(int input, int output, std::chrono::milliseconds limit);

}  // namespace cohort::launcher
