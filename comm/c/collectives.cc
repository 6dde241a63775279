// The collective calls of cohort.h.
#include "cohort/comm/c/block_reduction.h"
#include "cohort/comm/c/calls.h"
#include "cohort/comm/c/cohort.h"

namespace c = cohort::comm::c;
using cohort::comm::CollectiveKind;
using cohort::comm::Communicator;
using cohort::runtime::Work;

// In the functions below `group` is the communicator, `target` the same or its open batch.

cohort_status cohort_all_reduce(cohort_comm comm, const void* in, void* out, int64_t count, cohort_type type,
                                cohort_op op, const cohort_call_options* options, cohort_work* work) {
  return c::Serve(
      {"all_reduce", options, type, true, op}, comm, work,
      [=](auto& target, const c::PreparedOptions& p, Communicator&, Work* started) {
        c::Keep(target.AllReduce(p.In(in, count), p.Out(out, count), p.op, p.options, p.site), started);
        return COHORT_OK;
      },
      [=](Communicator& group, const c::PreparedOptions& p, Work* started, c::Kept* needs) {
        const c::BlockReduction reduction = {"all_reduce", CollectiveKind::kAllReduce, in, out, count};
        return c::ReduceBlocks(group, reduction, p, started, needs);
      });
}

cohort_status cohort_reduce(cohort_comm comm, const void* in, void* out, int64_t count, cohort_type type, cohort_op op,
                            int32_t root, const cohort_call_options* options, cohort_work* work) {
  return c::Serve(
      {"reduce", options, type, true, op}, comm, work,
      [=](auto& target, const c::PreparedOptions& p, Communicator&, Work* started) {
        c::Keep(target.Reduce(p.In(in, count), p.Out(out, count), p.op, root, p.options, p.site), started);
        return COHORT_OK;
      },
      [=](Communicator& group, const c::PreparedOptions& p, Work* started, c::Kept* needs) {
        const c::BlockReduction reduction = {"reduce", CollectiveKind::kReduce, in, out, count, nullptr, nullptr, root};
        return c::ReduceBlocks(group, reduction, p, started, needs);
      });
}

cohort_status cohort_broadcast(cohort_comm comm, void* buffer, int64_t count, cohort_type type, int32_t root,
                               const cohort_call_options* options, cohort_work* work) {
  return c::Serve({"broadcast", options, type}, comm, work,
                  [=](auto& target, const c::PreparedOptions& p, Communicator&, Work* started) {
                    c::Keep(target.Broadcast(p.Out(buffer, count), root, p.options, p.site), started);
                    return COHORT_OK;
                  });
}

cohort_status cohort_gather(cohort_comm comm, const void* in, void* out, int64_t count, cohort_type type, int32_t root,
                            const cohort_call_options* options, cohort_work* work) {
  return c::Serve({"gather", options, type}, comm, work,
                  [=](auto& target, const c::PreparedOptions& p, Communicator& group, Work* started) {
                    const int64_t all = c::Scaled(count, group.size());
                    c::Keep(target.Gather(p.In(in, count), p.Out(out, all), root, p.options, p.site), started);
                    return COHORT_OK;
                  });
}

cohort_status cohort_scatter(cohort_comm comm, const void* in, void* out, int64_t count, cohort_type type, int32_t root,
                             const cohort_call_options* options, cohort_work* work) {
  return c::Serve({"scatter", options, type}, comm, work,
                  [=](auto& target, const c::PreparedOptions& p, Communicator& group, Work* started) {
                    const int64_t all = c::Scaled(count, group.size());
                    c::Keep(target.Scatter(p.In(in, all), p.Out(out, count), root, p.options, p.site), started);
                    return COHORT_OK;
                  });
}

cohort_status cohort_all_gather(cohort_comm comm, const void* in, void* out, int64_t count, cohort_type type,
                                const cohort_call_options* options, cohort_work* work) {
  return c::Serve({"all_gather", options, type}, comm, work,
                  [=](auto& target, const c::PreparedOptions& p, Communicator& group, Work* started) {
                    const int64_t all = c::Scaled(count, group.size());
                    c::Keep(target.AllGather(p.In(in, count), p.Out(out, all), p.options, p.site), started);
                    return COHORT_OK;
                  });
}

cohort_status cohort_reduce_scatter(cohort_comm comm, const void* in, void* out, int64_t count, cohort_type type,
                                    cohort_op op, const cohort_call_options* options, cohort_work* work) {
  return c::Serve(
      {"reduce_scatter", options, type, true, op}, comm, work,
      [=](auto& target, const c::PreparedOptions& p, Communicator& group, Work* started) {
        const int64_t all = c::Scaled(count, group.size());
        c::Keep(target.ReduceScatter(p.In(in, all), p.Out(out, count), p.op, p.options, p.site), started);
        return COHORT_OK;
      },
      [=](Communicator& group, const c::PreparedOptions& p, Work* started, c::Kept* needs) {
        const c::BlockReduction reduction = {"reduce_scatter", CollectiveKind::kReduceScatter, in, out, count};
        return c::ReduceBlocks(group, reduction, p, started, needs);
      });
}

cohort_status cohort_all_to_all(cohort_comm comm, const void* in, void* out, int64_t count, cohort_type type,
                                const cohort_call_options* options, cohort_work* work) {
  return c::Serve({"all_to_all", options, type}, comm, work,
                  [=](auto& target, const c::PreparedOptions& p, Communicator& group, Work* started) {
                    const int64_t all = c::Scaled(count, group.size());
                    c::Keep(target.AllToAll(p.In(in, all), p.Out(out, all), p.options, p.site), started);
                    return COHORT_OK;
                  });
}

cohort_status cohort_barrier(cohort_comm comm, const cohort_call_options* options, cohort_work* work) {
  return c::Serve({"barrier", options}, comm, work,
                  [=](auto& target, const c::PreparedOptions& p, Communicator&, Work* started) {
                    return c::Barrier(target, p, started);
                  });
}

cohort_status cohort_send(cohort_comm comm, const void* in, int64_t count, cohort_type type, int32_t peer,
                          const cohort_call_options* options, cohort_work* work) {
  return c::Serve({"send", options, type}, comm, work,
                  [=](auto& target, const c::PreparedOptions& p, Communicator&, Work* started) {
                    c::Keep(target.Send(p.In(in, count), peer, p.options, p.site), started);
                    return COHORT_OK;
                  });
}

cohort_status cohort_receive(cohort_comm comm, void* out, int64_t count, cohort_type type, int32_t peer,
                             const cohort_call_options* options, cohort_work* work) {
  return c::Serve({"receive", options, type}, comm, work,
                  [=](auto& target, const c::PreparedOptions& p, Communicator&, Work* started) {
                    c::Keep(target.Recv(p.Out(out, count), peer, p.options, p.site), started);
                    return COHORT_OK;
                  });
}
