#include "tests/launcher/dlaunch/same_command.h"

#include <cstdio>
#include <utility>

#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;

constexpr bool kHaveTrainer = COHORT_TESTS_HAVE_TRAINER != 0;

}  // namespace

vector<string> TrainingProgram() {
  // By its name alone: it lies in dlaunch's own folder.
  if (kHaveTrainer) return {"train_digits", "--epochs", "1"};
  std::printf("this build has no trainer: collperf stands for train_digits\n");
  return {"collperf", "all_reduce", "-b", "8", "-e", "64K", "-n", "5"};
}

vector<string> TwoNodeTraining(vector<string> options) {
  vector<string> command = std::move(options);
  command.insert(command.end(), {"--nnodes", "2", "--"});
  const vector<string> program = TrainingProgram();
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

string ProblemOfTraining(const string& out) {
  const vector<string> expected =
      kHaveTrainer ? vector<string>{"2 ranks on 2 nodes", "epoch  1/1", "test accuracy"} : vector<string>{"all_reduce"};
  for (const string& text : expected) {
    if (out.find(text) == string::npos) return "no '" + text + "' in: " + out;
  }
  return "";
}

}  // namespace cohort::launcher
