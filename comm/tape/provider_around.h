// A provider that stands before another one. By itself it changes nothing.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/comm/provider/prepared_call.h"
#include "cohort/comm/provider/provider.h"

namespace cohort::comm {

class ProviderAround : public Provider {
 public:
  explicit ProviderAround(std::unique_ptr<Provider> real) : real_(std::move(real)) {}

  std::string_view name() const override { return real_->name(); }
  absl::StatusOr<ServicePlan> Choose(const CollectiveRequest& request, const std::string& forced_algorithm) override {
    return real_->Choose(request, forced_algorithm);
  }
  void Start(PreparedCall& call, const void* in, void* out) override { real_->Start(call, in, out); }
  runtime::Work Run(PreparedCall& call) override { return real_->Run(call); }
  runtime::Work Launch(const AcceptedCall& call) override { return real_->Launch(call); }
  void BatchBegin() override { real_->BatchBegin(); }
  void BatchEnd() override { real_->BatchEnd(); }
  bool Poll() override { return real_->Poll(); }
  bool Active() const override { return real_->Active(); }
  void Arm() override { real_->Arm(); }
  absl::Status Register(const Buffer& buffer, runtime::Deadline deadline) override {
    return real_->Register(buffer, deadline);
  }
  void OnSplit(int color, int key, uint64_t child) override { real_->OnSplit(color, key, child); }
  void Fail(const absl::Status& status) override { real_->Fail(status); }
  const runtime::CallRecord* Pending() const override { return real_->Pending(); }
  bool WaitsIn(uint64_t sequence) const override { return real_->WaitsIn(sequence); }
  void OnTuning() override { real_->OnTuning(); }
  std::string Explain(const CollectiveRequest& request) override { return real_->Explain(request); }

 protected:
  Provider& real() const { return *real_; }
  // Ends what is under way in the provider behind, for a derived class whose members it calls back.
  void EndReal() { real_.reset(); }

 private:
  std::unique_ptr<Provider> real_;
};

}  // namespace cohort::comm
