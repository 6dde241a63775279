// Independent work shared among the machine's CPUs: large counts of one test that has one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace cohort::testing {

// Calls work(i) for every i in [first, last], in forked processes, one for each CPU that this process may use and bound
// to it; the result is the first text that is not empty, with its i, or what happened to the process that should have
// returned it. The caller must have one thread.
std::string ForEachInProcesses(uint64_t first, uint64_t last, const std::function<std::string(uint64_t)>& work);

}  // namespace cohort::testing
