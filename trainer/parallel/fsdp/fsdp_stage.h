// FsdpStage: a sharded model as a stage of a pipeline, which says when units are gathered, resharded and reduced. Hooks
// of the passes do none of it then: all units are whole between Unshard and Reshard, whatever micro-batches are under
// way, and accumulate whole gradients until Reduce.
#pragma once

#include <string>

#include "cohort/trainer/placement/reducible.h"

namespace cohort::trainer {

struct FsdpParts;
class FsdpRoot;
class FsdpUnit;
class PassCourse;

// As Reducible says. Errors are those of FsdpRoot. Unshard and Reduce throw c10::Error while no micro-batches are under
// way.
class FsdpStage : public Reducible {
 public:
  // All arguments outlive this.
  FsdpStage(FsdpRoot& root, FsdpParts& parts, PassCourse& passes) : root_(root), parts_(parts), passes_(passes) {}

  // Throws c10::Error under Join and SummonFullParams.
  void set_micro_batches_under_way(bool under_way) override;
  void Unshard() override;
  void Reshard() override;
  // Under no_sync what was accumulated is kept for the next time.
  void Reduce() override;
  void AbortGroups(const std::string& why) override;

  bool under_way() const { return under_way_; }
  // Instead of FsdpRoot's, which hold the lock. PreForward throws c10::Error for a unit that is not gathered.
  void PreForward(FsdpUnit& unit);
  void OnGradient(FsdpUnit& unit, int parameter);

 private:
  FsdpRoot& root_;
  FsdpParts& parts_;
  PassCourse& passes_;
  bool under_way_ = false;
};

}  // namespace cohort::trainer
