// The frames of threads' stacks by elfutils' libdw, which is loaded where it is installed: from a snapshot, the list of
// the process' mappings and the files of its program and libraries.
//
// It reads what strangers built, so an agent leaves it to a process of its own, which begins as this program does:
//
//   agent's thread                          dlaunch unwinder LIMIT --agent=PID
//                   ◄── one byte: libdw is there ──
//   snapshots       ─── standard input ──►            ─── standard output ──► the agent's loop
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cohort/launcher/agent/evidence/thread_snapshot.h"

namespace cohort::launcher {

// Whether libdw is installed. Loads it.
bool HasUnwinder();
// Returns the stacks as lines, innermost frame first, equal ones of a process once: "2 threads worker:", then
// "  pthread_cond_wait (libc.so.6)". Empty: nothing is known. Nothing in it differs from rank to rank.
std::string UnwindSnapshot(const ProcessSnapshot& snapshot);

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
