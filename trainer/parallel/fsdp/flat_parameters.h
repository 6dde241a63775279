// FlatParameters: the two vectors that hold a unit's parameters, and the way from one to the other.
//
//   parameters  a [5 rows]  b [2 rows]                     3 ranks
//   shards      |a0 a1|b0|     |a2 a3|b1|     |a4 --|--|   -- is padding
//   gathered    |a0 a1 a2 a3 a4 --|b0 b1 --|               each parameter has a place; its whole is a view of it
//
// One all-gather a parameter, all of them started as one, fills the places without a copy. Host memory is an exception
// for small parameters, because a call costs more than a copy there. They lie first in the shards. One all-gather
// brings them together to staging memory behind all places, and they are copied from there.
//
// The gathered vector has memory only while parameters are gathered. Views of it that autograd saved are valid again
// once it is gathered again.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/parallel/fsdp/fsdp_options.h"
#include "cohort/trainer/parallel/fsdp/fsdp_unit.h"
#include "cohort/trainer/transfer/device_stream.h"

namespace cohort::trainer {

class StoragePool;

class FlatParameters {
 public:
  // Legal transitions: Start kSharded -> kGathering; Finish kGathering -> kUnsharded; Reshard from both to kSharded.
  enum class State {
    kSharded,    // the module's parameters are this rank's rows
    kGathering,  // the same, and the gathered vector is being filled
    kUnsharded,  // the module's parameters are whole: views of the gathered vector
  };

  // Copies this rank's rows, number `rank` of `shards`, into a shard and gives them to the module. It sets `offset` of
  // each parameter. `parameters` outlives this. backward_ranks: FsdpUnit::backward_ranks. Local.
  FlatParameters(std::vector<FsdpParameter>& parameters, int shards, int rank, int backward_ranks,
                 const FullyShardedDataParallelOptions& options);
  ~FlatParameters();
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  State state() const { return state_; }
  // Elements of a shard, of all shards, and of what forward left for the neighbours.
  int64_t shard_numel() const { return shard_.defined() ? shard_.numel() : 0; }
  int64_t padded_numel() const { return shard_numel() * shards_; }
  int64_t kept_numel() const { return kept_.defined() ? kept_.numel() : 0; }
  // Whether gathering takes collectives, and their bytes.
  bool gathers() const { return shards_ > 1 && shard_numel() > 0; }
  int64_t gathered_bytes() const { return padded_numel() * static_cast<int64_t>(full_.element_size()); }
  // This rank's shard and the gathered vector. Both are undefined for a unit without parameters.
  const at::Tensor& shard() const { return shard_; }
  const at::Tensor& whole() const { return full_; }
  // Whether shards and gathered parameters have one type and device, so that one can be read as the other.
  bool same_kind() const { return full_.scalar_type() == shard_.scalar_type() && full_.device() == shard_.device(); }
  // Somebody else has views of the gathered memory while it is unsharded, as a graph has that comes back to it.
  bool borrowed() const;

  // Moves the shard into a window of `group`, where peers read it. Collective over it. Does nothing where what is
  // gathered has another type or device.
  void EnterWindow(comm::Communicator& group);
  void LeaveWindow();

  // Starts gathering what forward left among `neighbours`, or else the shards of `group`. Does nothing unless sharded.
  // `tag` is comm::CallOptions::tag.
  void Start(comm::Communicator& group, comm::Communicator* neighbours, StoragePool& pool, uint64_t tag);
  // Ends gathering and gives the module its whole parameters. On a device the current stream waits, not the host: an
  // error that comes later is Reshard's. Throws DistributedError.
  void Finish();
  // Waits for a gathering under way and gives the module its shards back. Returns the error of that gathering.
  absl::Status Reshard(StoragePool& pool);
  // Copies the part that backward_ranks() neighbours need; KeepForNeighbours takes it after Reshard.
  at::Tensor CopyForNeighbours();
  void KeepForNeighbours(at::Tensor part) { kept_ = std::move(part); }
  // Copies changed whole parameters into this rank's shard. Does nothing unless unsharded, or where both are the same
  // memory.
  void WriteBack();
  // Throws DistributedError for an error of Finish or Reshard.
  void ThrowUnlessGathered(const absl::Status& status) const;

 private:
  // A call that gathers `count` elements from `offset` on in each shard. They follow each other, rank by rank, from
  // `place` on.
  struct GatherCall {
    int64_t offset = 0, count = 0, place = 0;
  };
  void Become(State next);
  void LayOut(bool on_host, at::ScalarType compute_type);
  void MakeVectors(const FullyShardedDataParallelOptions& options);
  int64_t PlaceOf(const FsdpParameter& parameter) const { return parameter.offset * shards_; }
  runtime::Work StartGather(comm::Communicator& group, const at::Tensor& part, int64_t chunks, uint64_t tag);
  void CopyFromStaging();

  std::vector<FsdpParameter>& parameters_;
  const int shards_;
  const int rank_;
  const int backward_ranks_;
  bool resident_ = false;  // one shard in the compute type: the gathered vector is the shard itself
  bool in_window_ = false;
  State state_ = State::kSharded;
  at::Tensor shard_;  // [shard_numel], in the parameters' own type; on the host where that is offloaded
  at::Tensor full_;   // [padded_numel], and the staging memory; in the compute type
  at::Tensor kept_;   // [padded_numel / backward_ranks], of full_: this rank's part between forward and backward
  std::vector<at::Tensor> full_views_;
  std::vector<GatherCall> gather_calls_;
  int64_t staged_numel_ = 0;     // the first elements of a shard, which are gathered by way of staging memory
  int64_t gathered_chunks_ = 1;  // of each parameter, that a rank brought to the last gathering
  runtime::Work gather_;
  StreamChain streams_;  // that fill and use full_
};

}  // namespace cohort::trainer
