// RAFT's communicator (raft::comms::comms_iface) over cohort.h. A program hands it to RAFT, cuML or cuGraph:
//
//   auto comms = std::make_shared<raft::comms::comms_t>(std::make_unique<CohortComms>(world, COHORT_CUDA));
//   raft::resource::set_comms(handle, comms);
//
// The communicator stays the caller's and outlives this object; groups of comm_split are its own. Errors are exceptions
// with Cohort's text. isend and irecv take host memory, as RAFT's own communicators do. Messages of a pair arrive in
// the order of the calls: a tag is compared, it does not choose. Needs RAFT's headers and those of CUDA (PyPI:
// libraft-cu12).
#pragma once

#include <cohort/cohort.h>

#include <cstring>
#include <map>
#include <memory>
#include <raft/core/comms.hpp>
#include <stdexcept>
#include <string>
#include <vector>

class CohortComms final : public raft::comms::comms_iface {
  using Type = raft::comms::datatype_t;
  using Op = raft::comms::op_t;
  using Request = raft::comms::request_t;
  using Status = raft::comms::status_t;

 public:
  // `memory`, COHORT_CUDA or COHORT_HOST, is where the buffers of collectives are. Streams mean nothing for the latter.
  CohortComms(cohort_comm comm, int32_t memory) : comm_(comm), memory_(memory) {}
  ~CohortComms() override {
    for (const auto& [request, work] : under_way_) cohort_work_free(work);
    if (owned_) cohort_comm_free(comm_);
  }
  CohortComms(const CohortComms&) = delete;
  CohortComms& operator=(const CohortComms&) = delete;

  int get_size() const override {
    int32_t size = 0;
    Check(cohort_comm_size(comm_, &size));
    return size;
  }
  int get_rank() const override {
    int32_t rank = 0;
    Check(cohort_comm_rank(comm_, &rank));
    return rank;
  }
  std::unique_ptr<comms_iface> comm_split(int color, int key) const override {
    cohort_comm part = nullptr;
    Check(cohort_split(comm_, color, key, &part));
    auto comms = std::make_unique<CohortComms>(part, memory_);
    comms->owned_ = true;
    return comms;
  }
  void barrier() const override { Check(cohort_barrier(comm_, nullptr, nullptr)); }
  Status sync_stream(cudaStream_t stream) const override {
    if (memory_ == COHORT_CUDA && cudaStreamSynchronize(stream) != cudaSuccess) return Status::ERROR;
    return cohort_comm_state(comm_) == COHORT_OK ? Status::SUCCESS : Status::ABORT;
  }

  void isend(const void* buf, size_t size, int dest, int tag, Request* request) const override {
    const cohort_call_options options = Tagged(tag);
    cohort_work work = nullptr;
    Check(cohort_send(comm_, buf, static_cast<int64_t>(size), COHORT_UINT8, dest, &options, &work));
    *request = Keep(work);
  }
  void irecv(void* buf, size_t size, int source, int tag, Request* request) const override {
    const cohort_call_options options = Tagged(tag);
    cohort_work work = nullptr;
    Check(cohort_receive(comm_, buf, static_cast<int64_t>(size), COHORT_UINT8, source, &options, &work));
    *request = Keep(work);
  }
  void waitall(int count, Request requests[]) const override {
    for (int i = 0; i < count; ++i) {
      const auto found = under_way_.find(requests[i]);
      if (found == under_way_.end()) throw std::invalid_argument("waitall of a request that is not under way");
      const cohort_work work = found->second;
      under_way_.erase(found);
      const cohort_status status = cohort_work_wait(work, COHORT_FOREVER);
      const std::string text = status == COHORT_OK ? "" : cohort_last_error();
      cohort_work_free(work);
      if (status != COHORT_OK) throw std::runtime_error(text);
    }
  }

  void allreduce(const void* in, void* out, size_t count, Type type, Op op, cudaStream_t stream) const override {
    Start(stream, [&](auto* options, auto* work) {
      return cohort_all_reduce(comm_, in, out, Count(count), TypeOf(type), OpOf(op), options, work);
    });
  }
  void bcast(void* buffer, size_t count, Type type, int root, cudaStream_t stream) const override {
    Start(stream, [&](auto* options, auto* work) {
      return cohort_broadcast(comm_, buffer, Count(count), TypeOf(type), root, options, work);
    });
  }
  void bcast(const void* in, void* out, size_t count, Type type, int root, cudaStream_t stream) const override {
    const size_t bytes = count * static_cast<size_t>(cohort_type_bytes(TypeOf(type)));
    if (get_rank() == root && in != out && memory_ == COHORT_HOST) std::memcpy(out, in, bytes);
    if (get_rank() == root && in != out && memory_ == COHORT_CUDA &&
        cudaMemcpyAsync(out, in, bytes, cudaMemcpyDeviceToDevice, stream) != cudaSuccess) {
      throw std::runtime_error("bcast: cudaMemcpyAsync failed");
    }
    bcast(out, count, type, root, stream);
  }
  void reduce(const void* in, void* out, size_t count, Type type, Op op, int root, cudaStream_t stream) const override {
    Start(stream, [&](auto* options, auto* work) {
      return cohort_reduce(comm_, in, out, Count(count), TypeOf(type), OpOf(op), root, options, work);
    });
  }
  void allgather(const void* in, void* out, size_t count, Type type, cudaStream_t stream) const override {
    Start(stream, [&](auto* options, auto* work) {
      return cohort_all_gather(comm_, in, out, Count(count), TypeOf(type), options, work);
    });
  }
  void allgatherv(const void* in, void* out, const size_t* counts, const size_t* displacements, Type type,
                  cudaStream_t stream) const override {
    Start(stream, [&](auto* options, auto* work) {
      return cohort_all_gather_v(comm_, in, out, List(counts).data(), List(displacements).data(), TypeOf(type), options,
                                 work);
    });
  }
  void gather(const void* in, void* out, size_t count, Type type, int root, cudaStream_t stream) const override {
    Start(stream, [&](auto* options, auto* work) {
      return cohort_gather(comm_, in, out, Count(count), TypeOf(type), root, options, work);
    });
  }
  void gatherv(const void* in, void* out, size_t count, const size_t* counts, const size_t* displacements, Type type,
               int root, cudaStream_t stream) const override {
    const bool at_root = get_rank() == root;  // only there the lists are given
    const std::vector<int64_t> blocks = at_root ? List(counts) : std::vector<int64_t>();
    const std::vector<int64_t> places = at_root ? List(displacements) : std::vector<int64_t>();
    Start(stream, [&](auto* options, auto* work) {
      return cohort_gather_v(comm_, in, Count(count), out, blocks.data(), places.data(), TypeOf(type), root, options,
                             work);
    });
  }
  void reducescatter(const void* in, void* out, size_t count, Type type, Op op, cudaStream_t stream) const override {
    Start(stream, [&](auto* options, auto* work) {
      return cohort_reduce_scatter(comm_, in, out, Count(count), TypeOf(type), OpOf(op), options, work);
    });
  }

  void device_send(const void* buf, size_t size, int dest, cudaStream_t stream) const override {
    Start(stream, [&](auto* options, auto* work) {
      return cohort_send(comm_, buf, Count(size), COHORT_UINT8, dest, options, work);
    });
  }
  void device_recv(void* buf, size_t size, int source, cudaStream_t stream) const override {
    Start(stream, [&](auto* options, auto* work) {
      return cohort_receive(comm_, buf, Count(size), COHORT_UINT8, source, options, work);
    });
  }
  void device_sendrecv(const void* in, size_t in_size, int dest, void* out, size_t out_size, int source,
                       cudaStream_t stream) const override {
    device_multicast_sendrecv(in, {in_size}, {0}, {dest}, out, {out_size}, {0}, {source}, stream);
  }
  void device_multicast_sendrecv(const void* in, const std::vector<size_t>& in_sizes,
                                 const std::vector<size_t>& in_offsets, const std::vector<int>& dests, void* out,
                                 const std::vector<size_t>& out_sizes, const std::vector<size_t>& out_offsets,
                                 const std::vector<int>& sources, cudaStream_t stream) const override {
    const bool alone = !in_group_;
    if (alone) group_start();
    // A message that is refused leaves no group open, in which later calls would only be noted.
    struct Cancelled {
      ~Cancelled() {
        if (comms == nullptr) return;
        comms->in_group_ = false;
        (void)cohort_batch_cancel(comms->comm_);
      }
      const CohortComms* comms;
    } unless_started{alone ? this : nullptr};
    for (size_t i = 0; i < dests.size(); ++i) {
      device_send(static_cast<const char*>(in) + in_offsets[i], in_sizes[i], dests[i], stream);
    }
    for (size_t i = 0; i < sources.size(); ++i) {
      device_recv(static_cast<char*>(out) + out_offsets[i], out_sizes[i], sources[i], stream);
    }
    unless_started.comms = nullptr;
    if (alone) group_end();
  }
  void group_start() const override {
    Check(cohort_batch_begin(comm_));
    in_group_ = true;
  }
  void group_end() const override {
    in_group_ = false;
    LetGo([&](cohort_work* work) { return cohort_batch_end(comm_, work); });
  }

 private:
  static void Check(cohort_status status) {
    if (status != COHORT_OK) throw std::runtime_error(cohort_last_error());
  }
  static int64_t Count(size_t count) { return static_cast<int64_t>(count); }
  std::vector<int64_t> List(const size_t* numbers) const { return std::vector<int64_t>(numbers, numbers + get_size()); }
  static cohort_type TypeOf(Type type) {
    switch (type) {
      case Type::CHAR:
        return COHORT_INT8;
      case Type::UINT8:
        return COHORT_UINT8;
      case Type::INT32:
        return COHORT_INT32;
      case Type::UINT32:
        return COHORT_UINT32;
      case Type::INT64:
        return COHORT_INT64;
      case Type::UINT64:
        return COHORT_UINT64;
      case Type::FLOAT32:
        return COHORT_FLOAT32;
      case Type::FLOAT64:
        return COHORT_FLOAT64;
    }
    throw std::invalid_argument("unknown type of RAFT's");
  }
  static cohort_op OpOf(Op op) {
    switch (op) {
      case Op::SUM:
        return COHORT_SUM;
      case Op::PROD:
        return COHORT_PRODUCT;
      case Op::MIN:
        return COHORT_MIN;
      case Op::MAX:
        return COHORT_MAX;
    }
    throw std::invalid_argument("unknown operation of RAFT's");
  }
  static cohort_call_options Tagged(int tag) {
    cohort_call_options options = COHORT_CALL_OPTIONS_INIT;
    options.tag = static_cast<uint64_t>(static_cast<uint32_t>(tag)) + 1;
    return options;
  }
  Request Keep(cohort_work work) const {
    under_way_.emplace(++last_request_, work);
    return last_request_;
  }
  // On CUDA memory the operation goes on, in the order of its stream. On host memory it is done when this returns.
  template <typename Start>
  void LetGo(Start start) const {
    if (memory_ == COHORT_HOST) return Check(start(nullptr));
    cohort_work work = nullptr;
    Check(start(&work));
    Check(cohort_work_free(work));
  }
  template <typename Call>
  void Start(cudaStream_t stream, Call call) const {
    cohort_call_options options = COHORT_CALL_OPTIONS_INIT;
    options.memory = memory_;
    options.stream = memory_ == COHORT_CUDA ? stream : nullptr;
    if (memory_ == COHORT_CUDA && cudaGetDevice(&options.device) != cudaSuccess) {
      throw std::runtime_error("cudaGetDevice failed");
    }
    if (in_group_) return Check(call(&options, static_cast<cohort_work*>(nullptr)));
    LetGo([&](cohort_work* work) { return call(&options, work); });
  }

  const cohort_comm comm_;
  const int32_t memory_;
  bool owned_ = false;
  mutable bool in_group_ = false;
  mutable Request last_request_ = 0;
  mutable std::map<Request, cohort_work> under_way_;
};
