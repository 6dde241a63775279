#include "cohort/python/module/operations.h"

#include <array>
#include <string>
#include <utility>

#include "cohort/python/module/call_site.h"

namespace cohort::python {
namespace {

using comm::CollectiveKind;
using enum Argument;

constexpr std::array<const char*, 17> kArgumentNames = {"input",
                                                        "output",
                                                        "buffer",
                                                        "op",
                                                        "root",
                                                        "peer",
                                                        "input_counts",
                                                        "output_counts",
                                                        "input_displacements",
                                                        "output_displacements",
                                                        "timeout",
                                                        "async_op",
                                                        "algorithm",
                                                        "determinism",
                                                        "tag",
                                                        "stream",
                                                        "factor"};
constexpr size_t kArguments = kArgumentNames.size();
constexpr size_t kFirstOption = static_cast<size_t>(kTimeout);

constexpr Argument kAllReduce[] = {kInput, kOutput, kOp};
constexpr Argument kReduce[] = {kInput, kOutput, kOp, kRoot};
constexpr Argument kBroadcast[] = {kBuffer, kRoot};
constexpr Argument kRooted[] = {kInput, kOutput, kRoot};
constexpr Argument kMoved[] = {kInput, kOutput};
constexpr Argument kReduceScatter[] = {kInput, kOutput, kOp};
constexpr Argument kSend[] = {kInput, kPeer};
constexpr Argument kRecv[] = {kOutput, kPeer};
constexpr Argument kGatherV[] = {kInput, kOutput, kOutputCounts, kRoot, kOutputDisplacements};
constexpr Argument kScatterV[] = {kInput, kInputCounts, kOutput, kRoot, kInputDisplacements};
constexpr Argument kAllGatherV[] = {kInput, kOutput, kOutputCounts, kOutputDisplacements};
constexpr Argument kReduceScatterV[] = {kInput, kInputCounts, kOutput, kOp, kInputDisplacements};
constexpr Argument kAllToAllV[] = {kInput,        kInputCounts,        kOutput,
                                   kOutputCounts, kInputDisplacements, kOutputDisplacements};

constexpr Operation kOperations[] = {
    {CollectiveKind::kAllReduce, "all_reduce", kAllReduce, 1,
     "all_reduce(input, output=None, op='sum'): output[i] = op over all ranks of input[i]; without output in place."},
    {CollectiveKind::kReduce, "reduce", kReduce, 1,
     "reduce(input, output=None, op='sum', root=0): like all_reduce, but writes only root's output."},
    {CollectiveKind::kBroadcast, "broadcast", kBroadcast, 1,
     "broadcast(buffer, root=0): copies root's buffer into everyone's."},
    {CollectiveKind::kGather, "gather", kRooted, 1,
     "gather(input, output=None, root=0): output at root is [size * count], with rank r's input at r * count."},
    {CollectiveKind::kScatter, "scatter", kRooted, 2,
     "scatter(input, output, root=0): rank r gets block r of root's input; elsewhere input may be None."},
    {CollectiveKind::kAllGather, "all_gather", kMoved, 2,
     "all_gather(input, output): output is [size * count] on every rank."},
    {CollectiveKind::kReduceScatter, "reduce_scatter", kReduceScatter, 2,
     "reduce_scatter(input, output, op='sum'): rank r gets block r of the elementwise op; input is [size * count]."},
    {CollectiveKind::kAllToAll, "all_to_all", kMoved, 2,
     "all_to_all(input, output): block s of rank r's input becomes block r of rank s's output."},
    {CollectiveKind::kBarrier, "barrier", {}, 0, "barrier(): completes on no rank before every rank has called it."},
    {CollectiveKind::kSend, "send", kSend, 2, "send(input, peer): to group rank `peer`; counts of both sides agree."},
    {CollectiveKind::kRecv, "recv", kRecv, 2, "recv(output, peer): from group rank `peer`."},
    {CollectiveKind::kGatherV, "gather_v", kGatherV, 1,
     "gather_v(input, output=None, output_counts=None, root=0, output_displacements=None): only root's layout is "
     "read."},
    {CollectiveKind::kScatterV, "scatter_v", kScatterV, 3,
     "scatter_v(input, input_counts, output, root=0, input_displacements=None): only root's layout is read."},
    {CollectiveKind::kAllGatherV, "all_gather_v", kAllGatherV, 3,
     "all_gather_v(input, output, output_counts, output_displacements=None): counts are equal on all ranks."},
    {CollectiveKind::kReduceScatterV, "reduce_scatter_v", kReduceScatterV, 3,
     "reduce_scatter_v(input, input_counts, output, op='sum', input_displacements=None)"},
    {CollectiveKind::kAllToAllV, "all_to_all_v", kAllToAllV, 4,
     "all_to_all_v(input, input_counts, output, output_counts, input_displacements=None, output_displacements=None)"},
};

PyObject* At(std::span<PyObject* const> by_argument, Argument argument) {
  PyObject* const object = by_argument[static_cast<size_t>(argument)];
  return object == Py_None ? nullptr : object;
}

// A sequence of numbers of elements; complex elements are two of comm's.
bool ReadNumbers(PyObject* object, Elements elements, std::vector<int64_t>* numbers) {
  if (object == nullptr) return true;
  const Ref iterator(PyObject_GetIter(object));
  if (!iterator) return false;
  while (Ref item{PyIter_Next(iterator.get())}) {
    const Ref number(PyNumber_Index(item.get()));
    if (!number) return false;
    const int64_t value = PyLong_AsLongLong(number.get());
    if (value == -1 && PyErr_Occurred() != nullptr) return false;
    numbers->push_back(elements == Elements::kComplex ? 2 * value : value);
  }
  return PyErr_Occurred() == nullptr;
}

}  // namespace

std::span<const Operation> Operations() { return kOperations; }

bool PreparedCall::Read(const Operation& operation, const PassedArguments& passed) {
  std::array<const char*, kArguments> names{};
  std::array<PyObject*, kArguments> bound{};
  const size_t own = operation.arguments.size();
  for (size_t i = 0; i < own; ++i) names[i] = kArgumentNames[static_cast<size_t>(operation.arguments[i])];
  for (size_t i = kFirstOption; i < kArguments; ++i) names[own + i - kFirstOption] = kArgumentNames[i];
  const size_t all = own + kArguments - kFirstOption;
  if (!Bind(passed, operation.name, std::span(names).first(all), operation.required, own,
            std::span(bound).first(all))) {
    return false;
  }
  std::array<PyObject*, kArguments> by_argument{};
  for (size_t i = 0; i < own; ++i) by_argument[static_cast<size_t>(operation.arguments[i])] = bound[i];
  for (size_t i = kFirstOption; i < kArguments; ++i) by_argument[i] = bound[own + i - kFirstOption];
  kind = operation.kind;
  const std::optional<int> given_root = ReadInt(At(by_argument, kRoot), 0);
  const std::optional<int> given_peer = ReadInt(At(by_argument, kPeer), -1);
  if (!given_root.has_value() || !given_peer.has_value()) return false;
  root = *given_root;
  peer = *given_peer;
  if (!ReadMemory(by_argument) || !ReadReduction(At(by_argument, kOp)) || !ReadCounts(by_argument) ||
      !ReadOptions(by_argument)) {
    return false;
  }
  site = CallSite();
  return true;
}

bool PreparedCall::ReadMemory(std::span<PyObject* const> by_argument) {
  if (PyObject* const buffer = At(by_argument, kBuffer); buffer != nullptr) {
    return pending->out.Read(buffer, true, "buffer");
  }
  PyObject* const input = At(by_argument, kInput);
  PyObject* output = At(by_argument, kOutput);
  // Without this, a gradient that is None on every rank would be a call of no elements.
  const bool without_output = kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce;
  if (kind == CollectiveKind::kBroadcast || (without_output && input == nullptr)) {
    PyErr_Format(PyExc_TypeError, "%s is None; every rank passes memory", without_output ? "input" : "buffer");
    return false;
  }
  if (output == nullptr && without_output) output = input;
  if (input != nullptr && !pending->in.Read(input, false, "input")) return false;
  if (output != nullptr && !pending->out.Read(output, true, "output")) return false;
  if (input != nullptr && output != nullptr && pending->in.elements() != pending->out.elements()) {
    PyErr_SetString(PyExc_ValueError, "input and output have different types");
    return false;
  }
  return true;
}

bool PreparedCall::ReadReduction(PyObject* given) {
  if (!comm::Reduces(comm::EqualBlocksForm(kind))) return true;
  const bool named_op = given == nullptr || PyUnicode_Check(given) || PyLong_Check(given);
  if (!named_op && PyObject_HasAttrString(given, "function")) {  // dlaunch.UserOp
    const Ref function(PyObject_GetAttrString(given, "function"));
    const Ref name(PyObject_GetAttrString(given, "name"));
    const Ref commutative(PyObject_GetAttrString(given, "commutative"));
    if (!function || !name || !commutative) return false;
    std::optional<std::string> text = ReadText(name.get());
    const std::optional<bool> commutes = ReadBool(commutative.get(), true);
    if (!text.has_value() || !commutes.has_value()) return false;
    pending->reduction = std::make_unique<PythonReduction>(function.get(), *std::move(text), *commutes);
    options.user_op = pending->reduction->op();
    op = comm::ReduceOp::kUser;
    return true;
  }
  const std::optional<comm::ReduceOp> named = given == nullptr ? op : ReadReduceOp(given);
  if (!named.has_value()) return false;
  const std::optional<comm::ReduceOp> meant = OpFor(pending->out.elements(), *named);
  if (!meant.has_value()) return false;
  op = *meant;
  return true;
}

bool PreparedCall::ReadCounts(std::span<PyObject* const> by_argument) {
  if (!comm::HasUnequalBlocks(kind)) return true;
  return ReadNumbers(At(by_argument, kInputCounts), pending->in.elements(), &in_counts) &&
         ReadNumbers(At(by_argument, kOutputCounts), pending->out.elements(), &out_counts) &&
         ReadNumbers(At(by_argument, kInputDisplacements), pending->in.elements(), &in_displacements) &&
         ReadNumbers(At(by_argument, kOutputDisplacements), pending->out.elements(), &out_displacements);
}

bool PreparedCall::ReadOptions(std::span<PyObject* const> by_argument) {
  const auto timeout = ReadSeconds(At(by_argument, kTimeout), options.timeout);
  const std::optional<bool> is_async = ReadBool(At(by_argument, kAsyncOp), false);
  if (!timeout.has_value() || !is_async.has_value()) return false;
  options.timeout = *timeout;
  async = *is_async;
  if (PyObject* const algorithm = At(by_argument, kAlgorithm); algorithm != nullptr) {
    const std::optional<std::string> name = ReadText(algorithm);
    if (!name.has_value()) return false;
    options.algorithm = *name;
  }
  if (PyObject* const level = At(by_argument, kDeterminism); level != nullptr) {
    const std::optional<std::string> name = ReadText(level);
    if (!name.has_value()) return false;
    bool known = false;
    for (int i = 1; i < comm::kDeterminismLevels; ++i) {
      if (Name(static_cast<comm::Determinism>(i)) != *name) continue;
      options.determinism = static_cast<comm::Determinism>(i);
      known = true;
    }
    if (!known) {
      PyErr_Format(PyExc_ValueError, "determinism is 'fast', 'reproducible' or 'order_invariant', not %R", level);
      return false;
    }
  }
  if (PyObject* const tag = At(by_argument, kTag); tag != nullptr) options.tag = PyLong_AsUnsignedLongLong(tag);
  if (PyObject* const stream = At(by_argument, kStream); stream != nullptr) options.stream = PyLong_AsVoidPtr(stream);
  if (PyObject* const factor = At(by_argument, kFactor); factor != nullptr) options.factor = PyFloat_AsDouble(factor);
  return PyErr_Occurred() == nullptr;
}

void PreparedCall::Start(comm::Communicator& c) {
  const comm::Buffer out = pending->out.buffer();
  const comm::ConstBuffer in = pending->in.buffer();
  const comm::BlockLayout in_blocks{in_counts, in_displacements};
  const comm::BlockLayout out_blocks{out_counts, out_displacements};
  runtime::Work& work = pending->work;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      work = c.AllReduce(in, out, op, options, site);
      break;
    case CollectiveKind::kReduce:
      work = c.Reduce(in, out, op, root, options, site);
      break;
    case CollectiveKind::kBroadcast:
      work = c.Broadcast(out, root, options, site);
      break;
    case CollectiveKind::kGather:
      work = c.Gather(in, out, root, options, site);
      break;
    case CollectiveKind::kScatter:
      work = c.Scatter(in, out, root, options, site);
      break;
    case CollectiveKind::kAllGather:
      work = c.AllGather(in, out, options, site);
      break;
    case CollectiveKind::kReduceScatter:
      work = c.ReduceScatter(in, out, op, options, site);
      break;
    case CollectiveKind::kAllToAll:
      work = c.AllToAll(in, out, options, site);
      break;
    case CollectiveKind::kBarrier:
      work = c.Barrier(options, site);
      break;
    case CollectiveKind::kSend:
      work = c.Send(in, peer, options, site);
      break;
    case CollectiveKind::kRecv:
      work = c.Recv(out, peer, options, site);
      break;
    case CollectiveKind::kGatherV:
      work = c.GatherV(in, out, out_blocks, root, options, site);
      break;
    case CollectiveKind::kScatterV:
      work = c.ScatterV(in, in_blocks, out, root, options, site);
      break;
    case CollectiveKind::kAllGatherV:
      work = c.AllGatherV(in, out, out_blocks, options, site);
      break;
    case CollectiveKind::kReduceScatterV:
      work = c.ReduceScatterV(in, in_blocks, out, op, options, site);
      break;
    case CollectiveKind::kAllToAllV:
      work = c.AllToAllV(in, in_blocks, out, out_blocks, options, site);
      break;
  }
}

}  // namespace cohort::python
