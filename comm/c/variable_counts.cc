// The variable-count calls of cohort.h.
#include "cohort/comm/c/block_reduction.h"
#include "cohort/comm/c/calls.h"
#include "cohort/comm/c/cohort.h"

namespace c = cohort::comm::c;
using cohort::comm::CollectiveKind;
using cohort::comm::Communicator;
using cohort::runtime::Work;

cohort_status cohort_gather_v(cohort_comm comm, const void* in, int64_t in_count, void* out, const int64_t* counts,
                              const int64_t* displacements, cohort_type type, int32_t root,
                              const cohort_call_options* options, cohort_work* work) {
  return c::Serve(
      {"gather_v", options, type}, comm, work,
      [=](auto& target, const c::PreparedOptions& p, Communicator& group, Work* started) -> cohort_status {
        c::Blocks blocks;
        if (group.rank() == root) {
          const cohort_status read =
              c::Blocks::Read("gather_v", "counts", counts, displacements, group.size(), p.elements.scale, &blocks);
          if (read != COHORT_OK) return read;
        }
        c::Keep(target.GatherV(p.In(in, in_count), p.Span(out, blocks), blocks.layout(), root, p.options, p.site),
                started);
        return COHORT_OK;
      });
}

cohort_status cohort_scatter_v(cohort_comm comm, const void* in, const int64_t* counts, const int64_t* displacements,
                               void* out, int64_t out_count, cohort_type type, int32_t root,
                               const cohort_call_options* options, cohort_work* work) {
  return c::Serve(
      {"scatter_v", options, type}, comm, work,
      [=](auto& target, const c::PreparedOptions& p, Communicator& group, Work* started) -> cohort_status {
        c::Blocks blocks;
        if (group.rank() == root) {
          const cohort_status read =
              c::Blocks::Read("scatter_v", "counts", counts, displacements, group.size(), p.elements.scale, &blocks);
          if (read != COHORT_OK) return read;
        }
        c::Keep(target.ScatterV(p.Span(in, blocks), blocks.layout(), p.Out(out, out_count), root, p.options, p.site),
                started);
        return COHORT_OK;
      });
}

cohort_status cohort_all_gather_v(cohort_comm comm, const void* in, void* out, const int64_t* counts,
                                  const int64_t* displacements, cohort_type type, const cohort_call_options* options,
                                  cohort_work* work) {
  return c::Serve(
      {"all_gather_v", options, type}, comm, work,
      [=](auto& target, const c::PreparedOptions& p, Communicator& group, Work* started) -> cohort_status {
        c::Blocks blocks;
        const cohort_status read =
            c::Blocks::Read("all_gather_v", "counts", counts, displacements, group.size(), p.elements.scale, &blocks);
        if (read != COHORT_OK) return read;
        const cohort::comm::ConstBuffer own(in, blocks.count(group.rank()), p.elements.dtype, p.memory, p.device);
        c::Keep(target.AllGatherV(own, p.Span(out, blocks), blocks.layout(), p.options, p.site), started);
        return COHORT_OK;
      });
}

cohort_status cohort_reduce_scatter_v(cohort_comm comm, const void* in, const int64_t* counts,
                                      const int64_t* displacements, void* out, cohort_type type, cohort_op op,
                                      const cohort_call_options* options, cohort_work* work) {
  return c::Serve(
      {"reduce_scatter_v", options, type, true, op}, comm, work,
      [=](auto& target, const c::PreparedOptions& p, Communicator& group, Work* started) -> cohort_status {
        c::Blocks blocks;
        const cohort_status read = c::Blocks::Read("reduce_scatter_v", "counts", counts, displacements, group.size(),
                                                   p.elements.scale, &blocks);
        if (read != COHORT_OK) return read;
        const cohort::comm::Buffer own(out, blocks.count(group.rank()), p.elements.dtype, p.memory, p.device);
        c::Keep(target.ReduceScatterV(p.Span(in, blocks), blocks.layout(), own, p.op, p.options, p.site), started);
        return COHORT_OK;
      },
      [=](Communicator& group, const c::PreparedOptions& p, Work* started, c::Kept* needs) {
        const c::BlockReduction reduction = {"reduce_scatter_v", CollectiveKind::kReduceScatterV, in, out, 0, counts,
                                             displacements};
        return c::ReduceBlocks(group, reduction, p, started, needs);
      });
}

cohort_status cohort_all_to_all_v(cohort_comm comm, const void* in, const int64_t* in_counts,
                                  const int64_t* in_displacements, void* out, const int64_t* out_counts,
                                  const int64_t* out_displacements, cohort_type type,
                                  const cohort_call_options* options, cohort_work* work) {
  return c::Serve(
      {"all_to_all_v", options, type}, comm, work,
      [=](auto& target, const c::PreparedOptions& p, Communicator& group, Work* started) -> cohort_status {
        c::Blocks from;
        c::Blocks to;
        cohort_status read = c::Blocks::Read("all_to_all_v", "in_counts", in_counts, in_displacements, group.size(),
                                             p.elements.scale, &from);
        if (read != COHORT_OK) return read;
        read = c::Blocks::Read("all_to_all_v", "out_counts", out_counts, out_displacements, group.size(),
                               p.elements.scale, &to);
        if (read != COHORT_OK) return read;
        c::Keep(target.AllToAllV(p.Span(in, from), from.layout(), p.Span(out, to), to.layout(), p.options, p.site),
                started);
        return COHORT_OK;
      });
}
