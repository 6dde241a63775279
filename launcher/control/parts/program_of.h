// Which of a job's programs a rank runs. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"
#include "google/protobuf/repeated_ptr_field.h"

namespace cohort::launcher {

using RankPrograms = google::protobuf::RepeatedPtrField<v1::RankProgram>;

// Its place among the programs; 0 where none of them names the rank.
int ProgramOf(const RankPrograms& programs, uint32_t rank);

// Its program and arguments, with the rank and its place among the program's in the place of their marks.
std::vector<std::string> CommandOf(const RankPrograms& programs, uint32_t rank);

// "client" for /opt/client and for env A=1 client, "train.py" for python3 -u ./train.py; empty where all ranks run one
// program.
std::string ProgramName(const RankPrograms& programs, uint32_t rank);

}  // namespace cohort::launcher
