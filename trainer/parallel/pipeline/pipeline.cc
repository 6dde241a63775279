#include "cohort/trainer/parallel/pipeline/pipeline.h"

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "ATen/ThreadLocalState.h"
#include "cohort/trainer/autograd/autocast.h"
#include "cohort/trainer/autograd/random_place.h"
#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/pipeline/schedule/checker.h"
#include "cohort/trainer/parallel/pipeline/schedule/lowering.h"
#include "cohort/trainer/parallel/pipeline/schedule/text.h"
#include "cohort/trainer/parallel/pipeline/schedule/turn.h"
#include "cohort/trainer/parallel/pipeline/shared_gradients.h"
#include "cohort/trainer/parallel/pipeline/shared_weights.h"
#include "cohort/trainer/parallel/pipeline/stage_messages.h"
#include "cohort/trainer/parallel/pipeline/stage_passes.h"
#include "cohort/trainer/parallel/pipeline/stage_placements.h"
#include "cohort/trainer/placement/sharded_module.h"
#include "cohort/trainer/state/checkpoint/checkpoint.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// The values that the places of a rank read in one step, and their results. Each micro-batch is one place's.
struct StepData {
  std::vector<at::Tensor> inputs = {}, targets = {};  // by micro-batch; empty where this rank has no use for them
  std::vector<double> weights = {};
  double loss_scale = 1;
  bool trains = true;
  RandomPlace random = {};  // of the thread that called
  std::vector<at::Tensor> losses = {}, outputs = {};
};

LocalDevice DeviceOf(const std::vector<PipelineStage>& stages, const PipelineOptions& options, int index) {
  if (!options.devices.empty()) return options.devices[static_cast<size_t>(index)];
  for (const PipelineStage& stage : stages) {
    for (const at::Tensor& parameter : stage.module->parameters()) return {0, parameter.device()};
  }
  return {};
}

bool IsSharded(const PipelineStage& stage) { return ShardedModuleOf(*stage.module) != nullptr; }

// How the layers were cut, as TakeLayers has noted it for each of these stages. Empty for modules of the user's own.
std::string CutOf(const std::vector<PipelineStage>& stages) {
  std::string cut;
  for (const PipelineStage& stage : stages) {
    std::vector<std::shared_ptr<torch::nn::Module>> modules = stage.module->modules(/*include_self=*/false);
    modules.push_back(stage.module);
    for (const auto& module : modules) {
      const auto* const part = dynamic_cast<const StageModule*>(module.get());
      if (part == nullptr || part->cut().empty()) continue;
      TORCH_CHECK(cut.empty() || cut == part->cut(), "Pipeline: this rank's stages are of other cuts:\n", cut, "and\n",
                  part->cut());
      cut = part->cut();
    }
  }
  return cut;
}

// Ranks whose layers were cut otherwise would leave layers out, or have them twice.
void CheckSameCut(comm::Communicator& group, const std::string& mine) {
  const std::vector<std::string> cuts = GatherTexts(group, mine, "making a pipeline", default_timeout());
  const auto known = [](const std::string& cut) { return !cut.empty(); };
  const auto first = std::find_if(cuts.begin(), cuts.end(), known);
  const auto other = std::find_if(first, cuts.end(), [&](const auto& cut) { return known(cut) && cut != *first; });
  if (other == cuts.end()) return;
  throw DistributedError(absl::StatusCode::kFailedPrecondition,
                         "Pipeline: rank " + std::to_string(other - cuts.begin()) +
                             " has cut the layers otherwise than rank " + std::to_string(first - cuts.begin()) +
                             "; cut one list of layers alike on all ranks, and make pipelines in one order. There:\n" +
                             *other + "here:\n" + *first);
}

}  // namespace

std::vector<int> StagesOf(const Schedule& schedule, int rank, int devices) {
  std::vector<int> stages;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    if (schedule.rank_of_stage[static_cast<size_t>(stage)] / devices == rank) stages.push_back(stage);
  }
  return stages;
}

class Pipeline::Runner {
 public:
  Runner(std::vector<PipelineStage> stages, Schedule schedule, comm::Communicator& group, PipelineOptions options)
      : stages_(std::move(stages)),
        schedule_(std::move(schedule)),
        options_(std::move(options)),
        weights_(JoinPairs(options_.shared_weights)) {
    CheckFits(group);
    auto forward_only = ForwardOnly(schedule_);
    ThrowUnlessOk(forward_only.status(), "Pipeline");
    forward_only_ = *std::move(forward_only);
    exchange_.emplace(group, devices());
    for (int device = 0; device < devices(); ++device) {
      const int place = group.rank() * devices() + device;
      places_.push_back(std::make_unique<Place>(*this, place, DeviceOf(stages_, options_, device)));
    }
    if (group.size() > 1) exchange_->Connect(DeviceOf(stages_, options_, 0), schedule_);
    TogetherOrNot(group, "making a pipeline", [&] { placements_.Enter(stages_, group); }, default_timeout());
    for (size_t i = 0; i < weights_.size(); ++i) Share(weights_[i], copy_numbers_[i], group);
    for (SharedGradient& shared : shared_) shared.Broadcast();
  }

  StepResult Step(const at::Tensor& inputs, const at::Tensor& targets, double loss_scale, bool trains) {
    StepData data{.loss_scale = loss_scale, .trains = trains, .random = random_place()};
    const int m = schedule_.micro_batches;
    try {
      exchange_->BeginStep(trains);
      CompareOnce(data.random);
      for (SharedGradient& shared : shared_) {
        if (trains) shared.Begin();
      }
      if (Has(0)) data.inputs = SplitMicroBatches(inputs, m, "inputs");
      if (Has(schedule_.stages - 1) && (trains || targets.defined())) {
        data.targets = SplitMicroBatches(targets, m, "targets");
        data.weights = LossWeights(data.targets, options_.valid_targets);
      }
      data.losses.resize(data.targets.size());
      data.outputs.resize(Has(schedule_.stages - 1) && !trains ? static_cast<size_t>(m) : 0);
      for (const PipelineStage& stage : stages_) {
        if (stage.reducible != nullptr) stage.reducible->set_micro_batches_under_way(true);
      }
      RunPlaces(data);
      if (trains) SumShared();
      for (const PipelineStage& stage : stages_) {
        if (stage.reducible != nullptr) stage.reducible->set_micro_batches_under_way(false);
      }
    } catch (...) {
      const std::string why = TextOfCaught();
      Fail(why);
      for (const PipelineStage& stage : stages_) FailStage(stage, why);
      throw;
    }
    return ResultOf(data);
  }

  void BroadcastShared() {
    for (SharedGradient& shared : shared_) shared.Broadcast();
  }
  const Schedule& schedule() const { return schedule_; }
  comm::Communicator& group() { return exchange_->group(); }
  const std::vector<PipelineStage>& stages() const { return stages_; }

 private:
  // A device of this rank, and the actions of the schedule's rank that it is.
  struct Place {
    Place(Runner& runner, int place, LocalDevice local_device)
        : index(place),
          device(local_device),
          messages(runner.schedule_, place, local_device, *runner.exchange_, runner.options_.one_batch_per_turn) {
      for (const PipelineStage& stage : runner.stages_) {
        if (runner.schedule_.rank_of_stage[static_cast<size_t>(stage.index)] == place) {
          passes.emplace(stage.index, StagePasses(stage));
        }
      }
    }
    int index;
    LocalDevice device;
    StageMessages messages;
    std::map<int, StagePasses> passes;  // by stage
  };

  int devices() const { return options_.devices.empty() ? 1 : static_cast<int>(options_.devices.size()); }
  bool Has(int stage) const {
    return std::any_of(stages_.begin(), stages_.end(), [=](const auto& each) { return each.index == stage; });
  }
  const PipelineStage& StageAt(int index) const {
    return *std::find_if(stages_.begin(), stages_.end(), [=](const auto& each) { return each.index == index; });
  }

  // A fault that one rank finds is told to all, so that none waits for the others.
  void CheckFits(comm::Communicator& group) {
    std::string shared, cut;
    const auto check_own = [&] {
      CheckOwn(group);
      cut = CutOf(stages_);
    };
    TogetherOrNot(group, "making a pipeline", check_own, default_timeout());
    for (const SharedWeight& weight : options_.shared_weights) {
      shared += weight.name + " of stage " + std::to_string(weight.stage) + " is " + weight.other_name + " of stage " +
                std::to_string(weight.other_stage) + "\n";
    }
    CheckSameSetup(group, "Pipeline",
                   {{"devices of a rank", std::to_string(devices())},
                    {"schedule", ToText(schedule_)},
                    {"shared weights", shared},
                    {"one_batch_per_turn", options_.one_batch_per_turn ? "on" : "off"}});
    CheckSameCut(group, cut);
    copy_numbers_ = NumberCopies(group, weights_, stages_);
  }

  // Before the first step. Of two pipelines with equal setup some ranks may have made or run the other one first: they
  // would wait for each other. Masks of ranks at other places are no one process's, and a rank that has resumed another
  // step would have other inputs than the targets are of.
  void CompareOnce(const RandomPlace& place) {
    if (std::exchange(compared_, true)) return;
    CheckSameSetup(exchange_->group(), "Pipeline",
                   {{"pipeline (by number; make and run pipelines in one order)", std::to_string(exchange_->id())},
                    {"seed of random_place()", std::to_string(place.seed)},
                    {"step of random_place()", std::to_string(place.step)}});
  }

  void CheckOwn(const comm::Communicator& group) const {
    const auto report = CheckSchedule(schedule_);
    ThrowUnlessOk(report.status(), "Pipeline: the schedule can't be run");
    TORCH_CHECK(options_.loss, "Pipeline: options.loss is needed");
    TORCH_CHECK(schedule_.ranks == group.size() * devices(), "Pipeline: a schedule of ", schedule_.ranks,
                " ranks needs as many ranks or devices, not ", group.size(), " ranks with ", devices(), " devices");
    for (const PipelineStage& stage : stages_) {
      if (stage.reducible != nullptr) continue;
      RefuseShards(*stage.module, "Pipeline",
                   "give the stage FullyShardedDataParallel itself, or what fully_shard returns");
    }
    std::vector<int> given;
    for (const PipelineStage& stage : stages_) given.push_back(stage.index);
    std::sort(given.begin(), given.end());
    TORCH_CHECK(given == StagesOf(schedule_, group.rank(), devices()), "Pipeline: rank ", group.rank(), " has stages ",
                given, "; the schedule gives it ", StagesOf(schedule_, group.rank(), devices()));
    CheckSharedWeights(weights_, stages_, schedule_.stages);
  }

  // Ranks that have the weight make a group for it, if they are several.
  void Share(const WeightOfStages& weight, const std::vector<int>& numbers, comm::Communicator& group) {
    const int copy_count = *std::max_element(numbers.begin(), numbers.end()) + 1;
    std::vector<int> ranks;
    std::vector<at::Tensor> copies;
    for (size_t i = 0; i < weight.holders.size(); ++i) {
      const int stage = weight.holders[i].stage;
      const int rank = schedule_.rank_of_stage[static_cast<size_t>(stage)] / devices();
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
      if (!Has(stage)) continue;
      shares_weights_.insert(stage);
      copies.push_back(SharedParameterOf(StageAt(stage), weight.holders[i].name));
      if (copy_count > 1) placements_.EnterCopy(copies.back(), weight.name(), numbers[i], copy_count);
    }
    if (copies.empty()) return;
    std::unique_ptr<comm::Communicator> holders;
    if (ranks.size() > 1) {
      auto made = group.Subgroup(ranks);
      ThrowUnlessOk(made.status(), "Pipeline: making the group of the shared weight " + weight.name());
      holders = *std::move(made);
    }
    shared_.emplace_back(weight.name(), copies, std::move(holders));
  }

  // Ranks that wait for this one anywhere in the step are told.
  void Fail(const std::string& why) {
    exchange_->Fail(why);
    for (SharedGradient& shared : shared_) shared.Abort(why);
  }
  static void FailStage(const PipelineStage& stage, const std::string& why) {
    if (stage.reducible != nullptr) stage.reducible->AbortGroups(why);
    for (comm::Communicator* group : GroupsOfLayers(stage)) group->Abort(why);
  }

  void RunPlaces(StepData& data) {
    if (places_.size() == 1) return RunPlace(*places_.front(), data);
    // One thread each: simulated devices work in the thread that calls them.
    std::vector<std::exception_ptr> errors(places_.size());
    const at::ThreadLocalState state;  // without the types and the cache of autocast
    const AutocastState autocast = CurrentAutocast();
    std::vector<std::thread> threads;
    for (size_t i = 0; i < places_.size(); ++i) {
      threads.emplace_back([&, i] {
        const at::ThreadLocalStateGuard guard(state);
        const AutocastStateGuard autocast_guard(autocast);
        try {
          RunPlace(*places_[i], data);
        } catch (...) {
          errors[i] = std::current_exception();
          const std::string why = TextOfCaught();
          Fail(why);
          // Others' are locked while they reduce; those who do are told by their peers, whom this one's end.
          for (const auto& [stage, passes] : places_[i]->passes) FailStage(StageAt(stage), why);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors) {
      if (error != nullptr) std::rethrow_exception(error);
    }
  }

  void RunPlace(Place& place, StepData& data) {
    const Schedule& schedule = data.trains ? schedule_ : forward_only_;
    const std::vector<Action>& actions = schedule.by_rank[static_cast<size_t>(place.index)];
    place.messages.BeginStep();
    for (auto& [stage, passes] : place.passes) passes.Clear();
    std::optional<at::NoGradGuard> no_grad;
    if (!data.trains) no_grad.emplace();
    for (size_t at = 0; at < actions.size();) {
      const std::span<const Action> turn = TurnAt(actions, at);
      if (turn.empty()) {
        Do(place, actions[at++], data);
      } else {
        place.messages.Turn(turn);
        at += turn.size();
      }
    }
    place.messages.Finish();
  }

  void Do(Place& place, const Action& action, StepData& data) {
    StagePasses& passes = place.passes.at(action.stage);
    const PipelineStage& stage = StageAt(action.stage);
    const int k = action.micro_batch;
    const auto gradient = [&]() -> at::Tensor {
      if (action.stage == schedule_.stages - 1) return {};
      return place.messages.Take({ActionKind::kRecvBackward, action.stage, k});
    };
    const auto send_back = [&](at::Tensor found) {
      if (action.stage > 0) place.messages.Put({ActionKind::kSendBackward, action.stage, k}, std::move(found));
    };
    switch (action.kind) {
      case ActionKind::kForward:
        return Forward(place, passes, action, data);
      case ActionKind::kBackward:
        return send_back(passes.Backward(k, gradient()));
      case ActionKind::kInputGradient:
        return send_back(passes.InputGradient(k, gradient()));
      case ActionKind::kWeightGradient:
        return passes.WeightGradient(k);
      case ActionKind::kUnshard:
        if (stage.reducible != nullptr) stage.reducible->Unshard();
        return;
      case ActionKind::kReduce:
        if (stage.reducible != nullptr && shares_weights_.count(action.stage) == 0) stage.reducible->Reduce();
        return;
      case ActionKind::kReshard:
        if (stage.reducible != nullptr && (shares_weights_.count(action.stage) == 0 || !data.trains)) {
          stage.reducible->Reshard();
        }
        return;
      default:
        return;
    }
  }

  void Forward(Place& place, StagePasses& passes, const Action& action, StepData& data) {
    const int k = action.micro_batch;
    const bool first = action.stage == 0, last = action.stage == schedule_.stages - 1;
    const at::Tensor input = first ? data.inputs[static_cast<size_t>(k)].to(place.device.device)
                                   : place.messages.Take({ActionKind::kRecvForward, action.stage, k});
    RandomPlace random = data.random;
    random.micro_batch = random.micro_batch * schedule_.micro_batches + k;
    const RandomPlaceGuard guard(random);
    std::function<at::Tensor(const at::Tensor&)> finish;
    if (last) finish = [&](const at::Tensor& output) { return LossOf(output, static_cast<size_t>(k), data); };
    if (options_.before_forward) options_.before_forward(k);
    at::Tensor output = passes.Forward(k, input, !first, finish);
    if (!last) place.messages.Put({ActionKind::kSendForward, action.stage, k}, std::move(output));
  }

  at::Tensor LossOf(const at::Tensor& output, size_t k, StepData& data) const {
    if (!data.trains) data.outputs[k] = output;
    if (data.targets.empty()) return output;
    if (data.weights[k] == 0) {  // a mean over no target is no number
      data.losses[k] = at::zeros({}, output.options().requires_grad(false));
      return (output * 0).sum();
    }
    const at::Tensor loss = options_.loss(output, data.targets[k].to(output.device()));
    data.losses[k] = loss.detach();
    return loss * (data.weights[k] * data.loss_scale);
  }

  // Stages that share weights are reduced when all have all of theirs: whole gradients after they have been added up
  // (Megatron-LM#844), with those of steps under no_sync, and shards before, because only then there is a gradient of a
  // shard.
  void SumShared() {
    ReduceSharing(/*shards=*/true);
    for (SharedGradient& shared : shared_) shared.Sum();
    for (SharedGradient& shared : shared_) shared.End();
    ReduceSharing(/*shards=*/false);
  }

  void ReduceSharing(bool shards) {
    for (const PipelineStage& stage : stages_) {
      if (stage.reducible == nullptr || shares_weights_.count(stage.index) == 0 || IsSharded(stage) != shards) continue;
      stage.reducible->Reduce();
      stage.reducible->Reshard();
    }
  }

  StepResult ResultOf(const StepData& data) const {
    StepResult result;
    const at::NoGradGuard no_grad;
    for (size_t k = 0; k < data.losses.size(); ++k) {
      const at::Tensor share = data.losses[k] * data.weights[k];
      result.loss = result.loss.defined() ? result.loss + share : share;
    }
    result.losses = data.losses;
    if (!data.outputs.empty()) result.output = at::cat(data.outputs);
    return result;
  }

  const std::vector<PipelineStage> stages_;
  StagePlacements placements_;
  const Schedule schedule_;
  Schedule forward_only_;
  const PipelineOptions options_;
  const std::vector<WeightOfStages> weights_;
  std::vector<std::vector<int>> copy_numbers_;  // by weight and holder
  std::optional<PlaceExchange> exchange_;
  std::vector<std::unique_ptr<Place>> places_;
  std::vector<SharedGradient> shared_;
  std::set<int> shares_weights_;  // stages of this rank
  bool compared_ = false;         // the ranks' places, before the first step
};

Pipeline::Pipeline(std::vector<PipelineStage> stages, Schedule schedule, comm::Communicator& group,
                   PipelineOptions options)
    : runner_(std::make_unique<Runner>(std::move(stages), std::move(schedule), group, std::move(options))) {}

Pipeline::~Pipeline() = default;

StepResult Pipeline::step(const at::Tensor& inputs, const at::Tensor& targets, double loss_scale) {
  return runner_->Step(inputs, targets, loss_scale, /*trains=*/true);
}

StepResult Pipeline::eval(const at::Tensor& inputs, const at::Tensor& targets) {
  return runner_->Step(inputs, targets, 1, /*trains=*/false);
}

void Pipeline::BroadcastSharedWeights() { runner_->BroadcastShared(); }

comm::Communicator& Pipeline::group() const { return runner_->group(); }
const Schedule& Pipeline::schedule() const { return runner_->schedule(); }
const std::vector<PipelineStage>& Pipeline::stages() const { return runner_->stages(); }

}  // namespace cohort::trainer
