#include "tools/collperf/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/runtime/base/status_macros.h"
#include "tools/measure/gate.h"
#include "tools/measure/text.h"
#include "tools/program/arguments.h"
#include "tools/program/program.h"

namespace cohort::collperf {
namespace {

using comm::DataType;
using comm::ReduceOp;
using measure::Fold;
using measure::Operation;

constexpr const char* kDescription =
    "Measures collective operations among the ranks of a job, or beside other systems, and checks every element of\n"
    "their results.";

constexpr const char* kFooter =
    "Examples:\n"
    "  dlaunch --nproc-per-node 2 collperf all_reduce\n"
    "  dlaunch --nproc-per-node 4 collperf all -b 8 -e 16M -f 8 --csv all.csv --plot all.svg\n"
    "  dlaunch --nproc-per-node 2 collperf all_reduce -b 64K -e 64K --window -n 1000\n"
    "  dlaunch --nnodes 2 --simulate-nodes 2 collperf all_gather --transport ucx\n"
    "  dlaunch --nproc-per-node 4 collperf all_reduce --determinism order_invariant\n"
    "  dlaunch --nproc-per-node 2 collperf all_reduce -d all -o all -b 4K -e 4K -n 5\n"
    "  dlaunch --gpus-per-rank 1 collperf all --memory cuda -e 1G\n"
    "  dlaunch --gpus-per-rank 1 collperf all_reduce --memory cuda -b 8 -e 64K --batch 100\n"
    "  dlaunch --simulate-nodes 2 --gpus-per-rank 1 sh -c 'NCCL_HOSTID=$RANK exec collperf all_reduce --memory cuda'\n"
    "  collperf all_reduce --bytes 8,64K,4M --peers openmpi,mpich --ranks 2 --transport shm\n"
    "\n"
    "What is measured: the bytes are those of one block: the whole vector of all_reduce, broadcast and reduce, one\n"
    "rank's part in the others. send_recv: each rank sends to the next one and receives from the one before, with two\n"
    "buffers in any case. Before each call all ranks meet at a gate that is none of ours; a call's time is that\n"
    "of its slowest rank. algbw is the larger of a rank's input and output divided by the median time, in GB/s; busbw\n"
    "corrects it for the operation and the number of ranks, as in nccl-tests. #wrong counts elements of all ranks.\n"
    "Below stands the mean of busbw over the sizes, and whether the machine is too busy for medians to say much.\n"
    "\n"
    "What --cost prints: the layers of an all_reduce of 8 B that repeats an earlier one, each alone and in cache: the\n"
    "engine's lock; the memory of calls, which finds the prepared call; its number and signature, by which ranks find\n"
    "out that their calls differ; its record in the black box, by which it can be said later what each rank was\n"
    "doing; over shm the send and the receive with its addition. The whole call is that of rank 0, whose peers'\n"
    "messages are there. The last two lines hold it against its bounds. What --determinism prints: each timed call\n"
    "runs in turn with the same call at fast; x fast is the ratio of their medians, and the last line its geometric\n"
    "mean.\n"
    "\n"
    "What --memory cuda measures: NCCL's calls on device memory, on a stream of collperf's own. A call's time ends\n"
    "when its result is on the device and the host has seen it: the host waits for each call. With --batch N it puts\n"
    "N calls on the stream and waits once, for the last, as nccl-tests do. Results are checked on the host, outside\n"
    "the times. barrier has no buffers and is left out. NCCL refuses ranks of one host that share a device: the last\n"
    "example gives each its own NCCL_HOSTID. It is for tests, since such ranks take turns on the device.\n"
    "\n"
    "What --peers measures: ours beside other systems, without dlaunch, which it calls itself; tools/dev bench peers\n"
    "installs and builds the systems. All run from one start to the end; one at a time computes while the others "
    "sleep.\n"
    "Each of them takes --turns turns at a point. A ratio is the median of those of the turns. --messages and "
    "--rewrite\n"
    "add points; without operations, sizes and --transport it measures all collectives, 8 B to 128M, over shm and "
    "tcp.\n"
    "\n"
    "Exit status: 0; 1 where an operation failed or an element was wrong; 2 for a command line that can't work.\n";

constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kTypeAliases = {{{"char", "int8"},
                                                                                        {"int", "int32"},
                                                                                        {"half", "float16"},
                                                                                        {"fp16", "float16"},
                                                                                        {"bf16", "bfloat16"},
                                                                                        {"float", "float32"},
                                                                                        {"fp32", "float32"},
                                                                                        {"double", "float64"},
                                                                                        {"fp64", "float64"}}};
constexpr std::array<std::pair<std::string_view, Fold>, 8> kFolds = {{{"sum", Fold::kSum},
                                                                      {"product", Fold::kProduct},
                                                                      {"min", Fold::kMin},
                                                                      {"max", Fold::kMax},
                                                                      {"avg", Fold::kAvg},
                                                                      {"band", Fold::kBitAnd},
                                                                      {"bor", Fold::kBitOr},
                                                                      {"bxor", Fold::kBitXor}}};

std::vector<NamedType> AllTypes() {
  std::vector<NamedType> types;
  for (int value = 1; value < comm::kDataTypes; ++value) {
    const auto dtype = static_cast<DataType>(value);
    const measure::ElementType* layout = measure::FindElementType(comm::Name(dtype));
    if (layout != nullptr) types.push_back({dtype, *layout});
  }
  return types;
}

std::vector<NamedOp> AllOps() {
  std::vector<NamedOp> ops;
  for (int value = 1; value < comm::kReduceOps; ++value) {
    const auto op = static_cast<ReduceOp>(value);
    for (const auto& [name, fold] : kFolds) {
      if (name == comm::Name(op)) ops.push_back({op, fold});
    }
  }
  return ops;
}

absl::StatusOr<comm::Determinism> ParseLevel(std::string_view name) {
  std::string names;
  for (int value = 1; value < comm::kDeterminismLevels; ++value) {
    const auto level = static_cast<comm::Determinism>(value);
    if (comm::Name(level) == name) return level;
    names += (names.empty() ? "" : ", ") + std::string(comm::Name(level));
  }
  return absl::InvalidArgumentError("there is no level \"" + std::string(name) + "\" of determinism; there are " +
                                    names);
}

// An algorithm serves one kind of operation, so every operation that is measured needs it.
absl::Status CheckAlgorithm(const Options& options) {
  if (options.algorithm.empty()) return absl::OkStatus();
  const std::string forced = "--algorithm " + options.algorithm.substr(0, 64);
  if (options.memory == comm::MemoryKind::kCuda) {
    if (options.algorithm == "staged") return absl::OkStatus();
    return absl::InvalidArgumentError("--memory cuda and " + forced +
                                      ": calls on device memory have staged, which goes through host memory; else NCCL "
                                      "chooses (see NCCL_ALGO)");
  }
  if (options.operations.empty()) {
    return absl::InvalidArgumentError(forced + " needs an operation that it serves, such as all_reduce, which has " +
                                      comm::AlgorithmNames(comm::CollectiveKind::kAllReduce));
  }
  for (const Operation operation : options.operations) {
    if (operation == Operation::kSendRecv) return absl::InvalidArgumentError(forced + ": send_recv has no algorithms");
    for (int value = 1; value < comm::kCollectiveKinds; ++value) {
      const auto kind = static_cast<comm::CollectiveKind>(value);
      if (comm::Name(kind) != measure::Name(operation) || comm::FindAlgorithm(kind, options.algorithm) != nullptr) {
        continue;
      }
      return absl::InvalidArgumentError(forced + ": " + std::string(comm::Name(kind)) + " has " +
                                        comm::AlgorithmNames(kind));
    }
  }
  return absl::OkStatus();
}

// Calls on device memory are NCCL's: what is about host memory and its transports has no meaning there.
absl::Status CheckMemory(const Options& options) {
  if (options.memory == comm::MemoryKind::kHost) return absl::OkStatus();
  const struct {
    bool given;
    const char* option;
    const char* why;
  } refused[] = {
      {options.window, "--window", "windows are host memory"},
      {options.rewrite, "--rewrite", "the host does not write device memory"},
      {options.messages > 1, "--messages",
       "a stream has one message under way at a time; --batch puts several calls on it"},
      {options.cost, "--cost", "it measures calls on host memory"},
      {options.calibrate, "--calibrate", "it measures the transports of host memory"},
      {!options.transport.empty(), "--transport",
       "NCCL has its own (see NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_NET)"},
  };
  for (const auto& [given, option, why] : refused) {
    if (given) return absl::InvalidArgumentError(std::string("--memory cuda and ") + option + ": " + why);
  }
  for (const Operation operation : options.operations) {
    if (measure::HasBlocks(operation)) continue;
    return absl::InvalidArgumentError("--memory cuda and barrier: it has no buffers and is served on host memory");
  }
  return absl::OkStatus();
}

absl::Status ParseMemory(std::string_view name, Options* options) {
  if (name != "host" && name != "cuda") {
    return absl::InvalidArgumentError("--memory " + std::string(name.substr(0, 64)) + ": there are host and cuda");
  }
  options->memory = name == "host" ? comm::MemoryKind::kHost : comm::MemoryKind::kCuda;
  return absl::OkStatus();
}

// The points of a run on the command line: operations and sizes.
struct PointArguments {
  std::string operations;  // "all", or names separated by commas
  std::string bytes;       // sizes separated by commas, in place of those below
  std::string min_bytes = "8";
  std::string max_bytes = "128M";
  std::string step_bytes;
  double factor = 4;
};

constexpr size_t kMostSizes = 100'000;
constexpr const char* kSizeOptions[] = {"--minbytes", "--maxbytes", "--stepfactor", "--stepbytes", "--bytes"};

absl::StatusOr<std::vector<int64_t>> ParseList(const std::string& bytes) {
  std::vector<int64_t> sizes;
  for (const std::string& text : measure::SplitAtCommas(bytes)) {
    COHORT_ASSIGN_OR_RETURN(const int64_t size, measure::ParseBytes(text));
    sizes.push_back(size);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

bool NamesSizes(const CLI::App& app) {
  return std::any_of(std::begin(kSizeOptions), std::end(kSizeOptions),
                     [&app](const char* option) { return app.count(option) > 0; });
}

absl::StatusOr<std::vector<Operation>> ParseOperations(const std::string& names) {
  if (names == "all") return measure::AllOperations();
  std::vector<Operation> operations;
  for (const std::string& name : measure::SplitAtCommas(names)) {
    Operation operation{};
    if (!measure::ParseOperation(name, &operation)) {
      return absl::InvalidArgumentError("there is no operation \"" + name + "\"; there are all, " +
                                        measure::OperationNames());
    }
    operations.push_back(operation);
  }
  return operations;
}

absl::StatusOr<std::vector<int64_t>> ParseSizes(const PointArguments& arguments) {
  if (!arguments.bytes.empty()) return ParseList(arguments.bytes);
  COHORT_ASSIGN_OR_RETURN(const int64_t min_bytes, measure::ParseBytes(arguments.min_bytes));
  COHORT_ASSIGN_OR_RETURN(const int64_t max_bytes, measure::ParseBytes(arguments.max_bytes));
  int64_t step_bytes = 0;
  if (!arguments.step_bytes.empty()) {
    COHORT_ASSIGN_OR_RETURN(step_bytes, measure::ParseBytes(arguments.step_bytes));
  }
  if (max_bytes < min_bytes) {
    return absl::InvalidArgumentError("-e " + arguments.max_bytes + " is less than -b " + arguments.min_bytes);
  }
  std::vector<int64_t> sizes;
  for (int64_t bytes = min_bytes; bytes <= max_bytes && sizes.size() <= kMostSizes;) {
    sizes.push_back(bytes);
    const double next = std::round(static_cast<double>(bytes) * arguments.factor);
    const int64_t most = std::numeric_limits<int64_t>::max();
    if (bytes >= most - std::max<int64_t>(step_bytes, 1) || (step_bytes == 0 && next >= 0x1p63)) break;
    bytes = step_bytes > 0 ? bytes + step_bytes : std::max(bytes + 1, static_cast<int64_t>(next));
  }
  if (sizes.size() > kMostSizes) {
    return absl::InvalidArgumentError("from -b " + arguments.min_bytes + " to -e " + arguments.max_bytes +
                                      " are more than " + std::to_string(kMostSizes) +
                                      " sizes: take a larger -i or -f");
  }
  return sizes;
}

// The options of one kind of run that mean nothing in another.
constexpr const char* kOfTables[] = {
    "--iters",  "--warmup_iters", "--batch", "--check", "--datatype",    "--op",    "--root",      "--in-place",
    "--memory", "--csv",          "--json",  "--plot",  "--determinism", "--spoil", "--algorithm", "--cost"};
constexpr const char* kOfJobs[] = {"--window", "--calibrate", "--each-algorithm"};
constexpr const char* kOfComparisons[] = {"--ranks", "--quick", "--overlap", "--results"};

// A comparison of all collectives, on all sizes and transports that nothing else is said about.
void FillComparison(const CLI::App& app, PointArguments* points, Options* options) {
  if (!NamesSizes(app)) {
    points->bytes = options->quick ? "8,1K,64K,512K,4M,32M" : "8,64,1K,8K,64K,512K,4M,32M,128M";
  }
  if (app.count("--point-ms") == 0) options->point_ms = options->quick ? 50 : 150;
  if (options->transport.empty()) options->transport = "shm,tcp";
}

struct Raw {
  PointArguments points;
  std::string type = "float32";
  std::string op = "sum";
  std::string determinism = "fast";
  std::string memory = "host";
  int check = 1;
};

absl::Status Interpret(const CLI::App& app, Raw raw, Options* options) {
  COHORT_RETURN_IF_ERROR(ParseMemory(raw.memory, options));
  const std::string& operations = raw.points.operations;
  const bool compares = !options->peers.empty();
  if (operations.empty()) {
    COHORT_RETURN_IF_ERROR(CheckAlgorithm(*options));
    if (!options->cost && !options->calibrate && !compares) {
      return absl::InvalidArgumentError("name the operation: all, " + measure::OperationNames());
    }
  }
  if (compares) FillComparison(app, &raw.points, options);
  options->operations = measure::Collectives();
  if (!compares || !operations.empty()) {
    COHORT_ASSIGN_OR_RETURN(options->operations, ParseOperations(operations));
  }
  // Without buffers a call is the same on any memory.
  if (operations == "all" && options->memory == comm::MemoryKind::kCuda) {
    std::erase_if(options->operations, [](Operation operation) { return !measure::HasBlocks(operation); });
  }
  COHORT_RETURN_IF_ERROR(CheckMemory(*options));
  COHORT_RETURN_IF_ERROR(CheckAlgorithm(*options));
  COHORT_ASSIGN_OR_RETURN(options->sizes, ParseSizes(raw.points));
  for (const int64_t bytes : options->sizes) {
    if (!compares || (bytes >= 4 && bytes % 4 == 0)) continue;
    return absl::InvalidArgumentError(std::to_string(bytes) + " B are no block of whole float32");
  }
  options->check = raw.check != 0;
  COHORT_ASSIGN_OR_RETURN(options->determinism, ParseLevel(raw.determinism));
  if (raw.type == "all") options->types = AllTypes();
  for (const std::string& name : raw.type == "all" ? std::vector<std::string>{} : measure::SplitAtCommas(raw.type)) {
    COHORT_ASSIGN_OR_RETURN(const NamedType type, ParseType(name));
    options->types.push_back(type);
  }
  if (raw.op == "all") options->ops = AllOps();
  for (const std::string& name : raw.op == "all" ? std::vector<std::string>{} : measure::SplitAtCommas(raw.op)) {
    COHORT_ASSIGN_OR_RETURN(const NamedOp op, ParseOp(name));
    options->ops.push_back(op);
  }
  if (options->types.empty() || options->ops.empty()) return absl::InvalidArgumentError("-d and -o may not be empty");
  for (const NamedType& type : options->types) {
    if (options->sizes.empty() || options->sizes.back() < type.layout.bytes) {
      return absl::InvalidArgumentError("the largest block is less than one " + std::string(type.layout.name));
    }
  }
  return absl::OkStatus();
}

void AddPointOptions(CLI::App* app, PointArguments* arguments) {
  app->add_option("operation", arguments->operations,
                  "all, or one or more, separated by commas, of: " + measure::OperationNames());
  app->add_option("-b,--minbytes", arguments->min_bytes, "smallest block, such as 8 or 64K")->capture_default_str();
  app->add_option("-e,--maxbytes", arguments->max_bytes, "largest block")->capture_default_str();
  app->add_option("-f,--stepfactor", arguments->factor, "from one size to the next")
      ->check(tools::Number(1.01, 1e9))
      ->capture_default_str();
  app->add_option("-i,--stepbytes", arguments->step_bytes, "add this instead of multiplying");
  app->add_option("--bytes", arguments->bytes, "exactly these blocks, separated by commas, such as 8,64K,4M");
}

void AddModes(CLI::App* app, Options* options) {
  CLI::Option* const each = app->add_flag("--each-algorithm", options->each_algorithm,
                                          "instead of a table: a line of CSV for each point, with the times of all "
                                          "algorithms in turn and of the selector's choice");
  app->add_option("--turns,--alternations", options->turns,
                  "of each algorithm or system at a point (7; 5 with --peers)")
      ->check(tools::Whole(1, 1000));
  CLI::Option* const peers = app->add_option("--peers", options->peers,
                                             "compare with these systems, separated by commas; all, or none (below)")
                                 ->delimiter(',');
  app->add_option("--ranks", options->ranks, "with --peers: numbers of ranks (2,4,8; 8 with 8 B only)")
      ->delimiter(',')
      ->check(CLI::Range(2, 64));
  app->add_flag("--quick", options->quick, "with --peers: fewer sizes and shorter measurements");
  app->add_flag("--overlap", options->overlap, "with --peers: asynchronous all-reduces beside computing too");
  app->add_option("--results", options->results, "with --peers: folder to keep the text, the CSV and the pictures in")
      ->type_name("FOLDER")
      ->take_last();
  for (const char* name : kOfTables) {
    each->excludes(app->get_option(name));
    peers->excludes(app->get_option(name));
  }
  for (const char* name : kOfJobs) peers->excludes(app->get_option(name));
  for (const char* name : {"--messages", "--rewrite"}) each->excludes(app->get_option(name));
  for (const char* name : kOfComparisons) app->get_option(name)->needs(peers);
}

void AddOptions(CLI::App* app, Raw* raw, Options* options) {
  const CLI::Validator file_name = tools::NotEmpty("the name of a file");
  AddPointOptions(app, &raw->points);
  app->add_option("-n,--iters", options->iterations, "timed calls of each size; 0: as many as fit into --point-ms")
      ->check(tools::Whole(0, measure::kMostNumbers))
      ->capture_default_str();
  app->add_option("-w,--warmup_iters", options->warmup, "calls before them")
      ->check(tools::Whole(0, 1'000'000))
      ->capture_default_str();
  app->add_option("--point-ms", options->point_ms, "time for the calls of one size without -n, in ms")
      ->check(tools::Whole(1, 600'000))
      ->capture_default_str();
  app->add_option("--batch", options->batch, "calls between two gates; above 1 the mean of a batch is one sample")
      ->check(tools::Whole(1, 1'000'000))
      ->capture_default_str();
  app->add_option("--messages", options->messages,
                  "of send_recv: messages under way at a time; a message's time is the mean over them")
      ->check(tools::Whole(1, 100'000))
      ->capture_default_str();
  app->add_flag("--rewrite", options->rewrite, "every rank writes its input again before each timed call (or batch)");
  app->add_option("-c,--check", raw->check, "1: check every element of untimed calls first; 0: don't")
      ->check(tools::Whole(0, 1))
      ->capture_default_str();
  app->add_option("-d,--datatype", raw->type, "all, or types separated by commas, such as float,half,int32")
      ->capture_default_str();
  app->add_option("-o,--op", raw->op, "all, or reductions separated by commas, such as sum,max")->capture_default_str();
  app->add_option("-r,--root", options->root, "root of rooted operations")
      ->check(tools::Whole(0, std::numeric_limits<int>::max()))
      ->capture_default_str();
  app->add_flag("--in-place", options->in_place, "input and output are the same memory");
  app->add_option("--memory", raw->memory, "host, or cuda: buffers on each rank's first CUDA device (below)")
      ->type_name("host|cuda")
      ->capture_default_str();
  app->add_flag("--window", options->window, "buffers in window memory, which the host's ranks share");
  app->add_option("--algorithm", options->algorithm, "force one (`plan list` names them) instead of the selector's")
      ->check(tools::NotEmpty("the name of an algorithm"));
  app->add_option("--determinism", raw->determinism,
                  "fast, reproducible or order_invariant reductions; what the level costs above fast is measured too")
      ->type_name("fast|reproducible|order_invariant")
      ->capture_default_str();
  app->add_flag("--calibrate", options->calibrate,
                "measure the machine first, choose algorithms by that, and print the table");
  app->add_option("--transport", options->transport, "allow only these, separated by commas, such as shm or shm,ucx");
  app->add_option("--csv", options->csv, "write the results there")->check(file_name)->type_name("FILE");
  app->add_option("--json", options->json, "write the results there, with the machine and every setting")
      ->check(file_name)
      ->type_name("FILE");
  app->add_option("--plot", options->plot, "draw time and bus bandwidth there, as SVG")
      ->check(file_name)
      ->type_name("FILE");
  app->add_flag("--cost", options->cost, "print what each layer costs a small call (below)");
  app->add_flag("--spoil", options->spoil, "spoil one element of each checked result: shows that #wrong counts it");
  AddModes(app, options);
}

}  // namespace

absl::StatusOr<NamedType> ParseType(std::string_view name) {
  std::string names;
  for (const auto& [alias, meant] : kTypeAliases) {
    if (alias == name) name = meant;
  }
  for (const NamedType& type : AllTypes()) {
    if (type.layout.name == name) return type;
    names += (names.empty() ? "" : ", ") + std::string(type.layout.name);
  }
  return absl::InvalidArgumentError("there is no type \"" + std::string(name) + "\"; there are all, " + names);
}

absl::StatusOr<NamedOp> ParseOp(std::string_view name) {
  std::string names;
  if (name == "prod") name = "product";
  for (const NamedOp& op : AllOps()) {
    if (comm::Name(op.op) == name) return op;
    names += (names.empty() ? "" : ", ") + std::string(comm::Name(op.op));
  }
  return absl::InvalidArgumentError("there is no reduction \"" + std::string(name) + "\"; there are all, " + names);
}

Parsed ParseCommandLine(int argc, const char* const* argv) {
  Parsed parsed;
  Raw raw;
  CLI::App app(kDescription, "collperf");
  app.footer(kFooter);
  AddOptions(&app, &raw, &parsed.options);
  if (const std::optional<tools::CommandLineEnd> end = tools::ReadCommandLine(app, argc, argv)) {
    parsed.ends = true;
    parsed.code = end->status;
    parsed.text = end->text;
    return parsed;
  }
  const absl::Status status = Interpret(app, raw, &parsed.options);
  if (!status.ok()) {
    parsed.ends = true;
    parsed.code = 2;
    parsed.text = "collperf: " + tools::Escaped(std::string(status.message())) + "\nTry collperf --help.\n";
  }
  return parsed;
}

}  // namespace cohort::collperf
