// Every way to two nodes runs this: `dlaunch --nnodes 2 train_digits`, with no address and no port.
#pragma once

#include <string>
#include <vector>

namespace cohort::launcher {

// The program and its arguments, a training of seconds. If this build has no trainer, a program that only measures
// collectives stands for it, and the test's output says so.
std::vector<std::string> TrainingProgram();
// `options` --nnodes 2, and that program.
std::vector<std::string> TwoNodeTraining(std::vector<std::string> options = {});
// Why `out` is not what that program prints on two nodes, a rank on each; empty: it is.
std::string ProblemOfTraining(const std::string& out);

}  // namespace cohort::launcher
