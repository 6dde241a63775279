// Reducible: a wrapper that moves gradients or parameters when it is told to, instead of in hooks of the passes. A
// pipeline has many forward passes under way before their backward passes come, and runs those in parts.
#pragma once

#include <string>

namespace cohort::trainer {

class Reducible {
 public:
  virtual ~Reducible() = default;
  // True: forward and backward passes accumulate local gradients until Reduce, in any number and order. False: each
  // backward pass reduces by itself again. Collective where buffers are broadcast or replicas are compared.
  virtual void set_micro_batches_under_way(bool under_way) = 0;
  // Reduces what was accumulated, over the replicas. Under the wrapper's no_sync it reduces nothing, and what was
  // accumulated stays for the next call outside of it. Collective; blocks. Throws DistributedError.
  virtual void Reduce() = 0;
  // Gathers whole parameters for the passes to come, and frees them. Wrappers with whole parameters do nothing. Unshard
  // is collective and blocks; it throws DistributedError.
  virtual void Unshard() {}
  virtual void Reshard() {}
  // Fails the wrapper's communicators here and on the other ranks, which wait for what this one won't send.
  virtual void AbortGroups(const std::string& /*why*/) {}
};

}  // namespace cohort::trainer
