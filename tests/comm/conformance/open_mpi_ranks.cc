// Random programs, run by Open MPI and by cohort::comm in the same processes: every buffer must come out alike, byte
// for byte. Started by mpirun, whose ranks meet through MpiStore: mpirun -n 4 <this> PROGRAMS
//
// All ranks draw the same program from its number: splits, collectives of all kinds with their variable-count forms,
// types, ops, counts, roots, in place or not. Open MPI's calls block; ours are waited for later, in an order of each
// rank's own. Values are small whole numbers, so that no order of summation matters.
#include <mpi.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/bootstrap/bootstrap.h"
#include "cohort/runtime/bootstrap/mpi_store.h"
#include "cohort/runtime/runtime.h"

namespace cohort {
namespace {

using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;
using comm::Work;

constexpr int kCalls = 20;  // of a program

struct TypePair {
  DataType ours;
  MPI_Datatype theirs;
};
const TypePair kTypes[] = {
    {DataType::kInt8, MPI_INT8_T},     {DataType::kUint8, MPI_UINT8_T},   {DataType::kInt16, MPI_INT16_T},
    {DataType::kUint16, MPI_UINT16_T}, {DataType::kInt32, MPI_INT32_T},   {DataType::kUint32, MPI_UINT32_T},
    {DataType::kInt64, MPI_INT64_T},   {DataType::kUint64, MPI_UINT64_T}, {DataType::kFloat32, MPI_FLOAT},
    {DataType::kFloat64, MPI_DOUBLE},
};
struct OpPair {
  ReduceOp ours;
  MPI_Op theirs;
};
const OpPair kOps[] = {
    {ReduceOp::kSum, MPI_SUM}, {ReduceOp::kProduct, MPI_PROD}, {ReduceOp::kMin, MPI_MIN}, {ReduceOp::kMax, MPI_MAX}};

template <typename T>
void FillAs(std::vector<std::byte>* buffer, uint64_t salt) {
  for (size_t i = 0; i < buffer->size() / sizeof(T); ++i) {
    const T value = static_cast<T>((i * 3 + salt * 7) % 5);
    std::memcpy(buffer->data() + i * sizeof(T), &value, sizeof value);
  }
}

std::vector<std::byte> Filled(int64_t count, DataType dtype, uint64_t salt) {
  std::vector<std::byte> buffer(static_cast<size_t>(count) * comm::SizeOf(dtype));
  if (dtype == DataType::kFloat32) {
    FillAs<float>(&buffer, salt);
  } else if (dtype == DataType::kFloat64) {
    FillAs<double>(&buffer, salt);
  } else {
    switch (comm::SizeOf(dtype)) {
      case 1:
        FillAs<uint8_t>(&buffer, salt);
        break;
      case 2:
        FillAs<uint16_t>(&buffer, salt);
        break;
      case 4:
        FillAs<uint32_t>(&buffer, salt);
        break;
      default:
        FillAs<uint64_t>(&buffer, salt);
    }
  }
  return buffer;
}

// One call as both systems made it. Memory stays where it is until our Work is done.
struct Pair {
  std::string what;
  std::vector<std::byte> in;
  std::vector<std::byte> ours;
  std::vector<std::byte> theirs;
  std::vector<int64_t> counts;
  Work work;
};

class Program {
 public:
  Program(Communicator* world, uint64_t number)
      : shared_(number), own_(number * 31 + static_cast<uint64_t>(world->rank())), number_(number) {
    groups_.push_back({world, nullptr, MPI_COMM_WORLD});
  }
  ~Program() {
    for (size_t i = 1; i < groups_.size(); ++i) MPI_Comm_free(&groups_[i].theirs);
  }

  // Empty, or what came out otherwise.
  std::string Run() {
    for (int call = 0; call < kCalls; ++call) {
      std::string wrong = Draw(10) == 0 ? Split() : Call(call);
      while (wrong.empty() && pending_.size() > own_() % 6) wrong = FinishOne();
      if (!wrong.empty()) return wrong;
    }
    std::string wrong;
    while (wrong.empty() && !pending_.empty()) wrong = FinishOne();
    return wrong;
  }

 private:
  struct Group {
    Communicator* ours;
    std::unique_ptr<Communicator> owned;
    MPI_Comm theirs;
  };

  uint64_t Draw(uint64_t bound) { return shared_() % bound; }

  std::string Split() {
    Group& parent = groups_[Draw(groups_.size())];
    const uint64_t salt = shared_();
    const auto rank = static_cast<uint64_t>(parent.ours->rank());
    const int color = static_cast<int>((salt >> (rank % 32)) & 1);
    const int key = static_cast<int>(salt % 7 * rank % 5);
    MPI_Comm theirs;
    MPI_Comm_split(parent.theirs, color, key, &theirs);
    auto ours = parent.ours->Split(color, key);
    if (!ours.ok()) return "split: " + ours.status().ToString();
    int their_rank = -1;
    MPI_Comm_rank(theirs, &their_rank);
    if ((*ours)->rank() != their_rank) return "split: the ranks are numbered otherwise";
    Communicator* made = ours->get();
    groups_.push_back({made, *std::move(ours), theirs});
    return "";
  }

  // All ranks of the world draw these alike, whatever group they then call it on.
  struct Drawn {
    uint64_t kind;
    TypePair type;
    OpPair op;
    int64_t count;
    uint64_t root;
    bool in_place;
    uint64_t salt;
  };

  std::string Call(int call) {
    Drawn drawn;
    Group& group = groups_[Draw(groups_.size())];
    drawn.kind = Draw(13);
    drawn.type = kTypes[Draw(std::size(kTypes))];
    drawn.op = kOps[Draw(std::size(kOps))];
    const uint64_t scale = Draw(8);
    drawn.count = static_cast<int64_t>(Draw(scale == 0 ? 20'000 : scale < 3 ? 700 : 20));
    drawn.root = shared_();
    drawn.in_place = Draw(2) == 0;
    drawn.salt = shared_() % 1000;
    pending_.push_back(std::make_unique<Pair>());
    Pair& pair = *pending_.back();
    pair.what = "call " + std::to_string(call) + ", kind " + std::to_string(drawn.kind) + ", " +
                std::string(comm::Name(drawn.type.ours)) + ", " + std::string(comm::Name(drawn.op.ours)) + ", " +
                std::to_string(drawn.count) + " elements, group of " + std::to_string(group.ours->size());
    if (drawn.kind < 8) {
      Equal(group, drawn, &pair);
    } else {
      Unequal(group, drawn, &pair);
    }
    return "";
  }

  void Equal(Group& group, const Drawn& drawn, Pair* pair) {
    Communicator& ours = *group.ours;
    const MPI_Comm theirs = group.theirs;
    const MPI_Datatype type = drawn.type.theirs;
    const int64_t n = drawn.count;
    const int count = static_cast<int>(n);
    const int64_t all = n * ours.size();
    const int root = static_cast<int>(drawn.root % static_cast<uint64_t>(ours.size()));
    const auto prepare = [&](int64_t in, int64_t out) {
      pair->in = Filled(in, drawn.type.ours, drawn.salt + static_cast<uint64_t>(ours.rank()));
      pair->ours = Filled(out, drawn.type.ours, drawn.salt + 11 + static_cast<uint64_t>(ours.rank()));
      pair->theirs = pair->ours;
    };
    const auto in = [&](int64_t elements) { return comm::ConstBuffer(pair->in.data(), elements, drawn.type.ours); };
    const auto out = [&](int64_t elements) { return comm::Buffer(pair->ours.data(), elements, drawn.type.ours); };
    const bool here = drawn.in_place;
    switch (drawn.kind) {
      case 0:
        prepare(n, n);
        pair->work = ours.AllReduce(here ? comm::ConstBuffer(out(n)) : in(n), out(n), drawn.op.ours);
        MPI_Allreduce(here ? MPI_IN_PLACE : pair->in.data(), pair->theirs.data(), count, type, drawn.op.theirs, theirs);
        return;
      case 1:
        prepare(n, n);
        pair->work = ours.Reduce(in(n), out(n), drawn.op.ours, root);
        MPI_Reduce(pair->in.data(), pair->theirs.data(), count, type, drawn.op.theirs, root, theirs);
        if (ours.rank() != root) pair->theirs.clear();
        return;
      case 2:
        prepare(0, n);
        pair->work = ours.Broadcast(out(n), root);
        MPI_Bcast(pair->theirs.data(), count, type, root, theirs);
        return;
      case 3:
        prepare(n, all);
        pair->work = ours.Gather(in(n), out(all), root);
        MPI_Gather(pair->in.data(), count, type, pair->theirs.data(), count, type, root, theirs);
        if (ours.rank() != root) pair->theirs.clear();
        return;
      case 4:
        prepare(all, n);
        pair->work = ours.Scatter(in(all), out(n), root);
        MPI_Scatter(pair->in.data(), count, type, pair->theirs.data(), count, type, root, theirs);
        return;
      case 5:
        prepare(n, all);
        pair->work = ours.AllGather(in(n), out(all));
        MPI_Allgather(pair->in.data(), count, type, pair->theirs.data(), count, type, theirs);
        return;
      case 6:
        prepare(all, n);
        pair->work = ours.ReduceScatter(in(all), out(n), drawn.op.ours);
        MPI_Reduce_scatter_block(pair->in.data(), pair->theirs.data(), count, type, drawn.op.theirs, theirs);
        return;
      default:
        prepare(all, all);
        pair->work = ours.AllToAll(here ? comm::ConstBuffer(out(all)) : in(all), out(all));
        MPI_Alltoall(here ? MPI_IN_PLACE : pair->in.data(), count, type, pair->theirs.data(), count, type, theirs);
    }
  }

  void Unequal(Group& group, const Drawn& drawn, Pair* pair) {
    Communicator& ours = *group.ours;
    const MPI_Comm theirs = group.theirs;
    const MPI_Datatype type = drawn.type.theirs;
    const auto size = static_cast<size_t>(ours.size());
    const auto rank = static_cast<size_t>(ours.rank());
    const int root = static_cast<int>(drawn.root % size);
    // Rank r's block in a call of equal counts everywhere; between a pair of ranks in an all-to-all.
    const auto block = [&](size_t from, size_t to) {
      return static_cast<int64_t>((drawn.salt * (from + 2) + to * 5) % static_cast<uint64_t>(drawn.count + 1));
    };
    std::vector<int> counts(size);
    std::vector<int> starts(size);
    std::vector<int> sent(size);
    std::vector<int> sent_starts(size);
    for (size_t i = 0; i < size; ++i) {
      counts[i] = static_cast<int>(drawn.kind == 12 ? block(i, rank) : block(i, i));
      sent[i] = static_cast<int>(block(rank, i));
    }
    std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), 0);
    std::exclusive_scan(sent.begin(), sent.end(), sent_starts.begin(), 0);
    const std::vector<int64_t> wide(counts.begin(), counts.end());
    const std::vector<int64_t> wide_sent(sent.begin(), sent.end());
    const comm::BlockLayout layout{wide, {}};
    const comm::BlockLayout sent_layout{wide_sent, {}};
    const int64_t all = starts.back() + counts.back();
    const int64_t all_sent = sent_starts.back() + sent.back();
    const int64_t mine = counts[rank];
    const auto prepare = [&](int64_t in, int64_t out) {
      pair->in = Filled(in, drawn.type.ours, drawn.salt + rank);
      pair->ours = Filled(out, drawn.type.ours, drawn.salt + 11 + rank);
      pair->theirs = pair->ours;
    };
    const auto in = [&](int64_t elements) { return comm::ConstBuffer(pair->in.data(), elements, drawn.type.ours); };
    const auto out = [&](int64_t elements) { return comm::Buffer(pair->ours.data(), elements, drawn.type.ours); };
    const int own = static_cast<int>(mine);
    switch (drawn.kind) {
      case 8:
        prepare(mine, all);
        pair->work = ours.GatherV(in(mine), out(all), layout, root);
        MPI_Gatherv(pair->in.data(), own, type, pair->theirs.data(), counts.data(), starts.data(), type, root, theirs);
        if (ours.rank() != root) pair->theirs.clear();
        return;
      case 9:
        prepare(all, mine);
        pair->work = ours.ScatterV(in(all), layout, out(mine), root);
        MPI_Scatterv(pair->in.data(), counts.data(), starts.data(), type, pair->theirs.data(), own, type, root, theirs);
        return;
      case 10:
        prepare(mine, all);
        pair->work = ours.AllGatherV(in(mine), out(all), layout);
        MPI_Allgatherv(pair->in.data(), own, type, pair->theirs.data(), counts.data(), starts.data(), type, theirs);
        return;
      case 11:
        prepare(all, mine);
        pair->work = ours.ReduceScatterV(in(all), layout, out(mine), drawn.op.ours);
        MPI_Reduce_scatter(pair->in.data(), pair->theirs.data(), counts.data(), type, drawn.op.theirs, theirs);
        return;
      default:
        prepare(all_sent, all);
        pair->work = ours.AllToAllV(in(all_sent), sent_layout, out(all), layout);
        MPI_Alltoallv(pair->in.data(), sent.data(), sent_starts.data(), type, pair->theirs.data(), counts.data(),
                      starts.data(), type, theirs);
    }
  }

  std::string FinishOne() {
    const auto chosen = pending_.begin() + static_cast<ptrdiff_t>(own_() % pending_.size());
    const std::unique_ptr<Pair> pair = std::move(*chosen);
    pending_.erase(chosen);
    const absl::Status status = pair->work.Wait();
    if (!status.ok()) return pair->what + ": " + status.ToString();
    // If only the root has a result, Open MPI may use the others' buffers.
    if (!pair->theirs.empty() && pair->ours != pair->theirs) return pair->what + ": Open MPI has another result";
    return "";
  }

  std::mt19937_64 shared_;
  std::mt19937_64 own_;
  const uint64_t number_;
  std::deque<Group> groups_;
  std::deque<std::unique_ptr<Pair>> pending_;
};

int Run(uint64_t programs) {
  auto store = runtime::MpiStore::Make(MPI_COMM_WORLD);
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 1;
  }
  const int rank = (*store)->rank();
  const int size = (*store)->size();
  runtime::RuntimeOptions options;
  options.progress_thread = true;  // a rank may stand in a call of Open MPI while others wait for one of ours
  options.bootstrap = runtime::BootstrapFromStore(store->get(), rank, size);
  auto job = runtime::Runtime::Init(std::move(options));
  auto world = job.ok() ? Communicator::World(**job) : absl::StatusOr<std::unique_ptr<Communicator>>(job.status());
  if (!world.ok()) {
    std::fprintf(stderr, "%s\n", world.status().ToString().c_str());
    return 1;
  }
  for (uint64_t number = 1; number <= programs; ++number) {
    const std::string wrong = Program(world->get(), number).Run();
    if (wrong.empty()) continue;
    std::fprintf(stderr, "rank %d, program %llu, %s\n", rank, static_cast<unsigned long long>(number), wrong.c_str());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) std::printf("%llu programs of %d ranks: equal\n", static_cast<unsigned long long>(programs), size);
  world->reset();
  return (*job)->Finalize().ok() ? 0 : 1;
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  int given = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &given);
  const int code = argc != 2 ? 2 : cohort::Run(std::strtoull(argv[1], nullptr, 10));
  MPI_Finalize();
  return code;
}
