#include "cohort/python/module/communicator.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/python/module/arguments.h"
#include "cohort/python/module/call_site.h"
#include "cohort/python/module/errors.h"
#include "cohort/python/module/exchange.h"
#include "cohort/python/module/operations.h"
#include "cohort/python/module/pending_call.h"
#include "cohort/python/module/session.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::python {
namespace {

// A communicator serves one thread at a time, Python programs have several: each call is started under the mutex, which
// is taken without the GIL. Waiting needs no mutex.
struct Guarded {
  ~Guarded() {
    GilRelease release;
    communicator.reset();
  }
  std::shared_ptr<Session> session;
  runtime::Mutex mutex;
  std::unique_ptr<comm::Communicator> communicator;  // null: closed

  // They never change and are read without the mutex.
  int rank = 0;
  int size = 1;
  uint64_t id = 0;
  std::vector<int> members;
  std::atomic<bool> open{true};
};

struct CommunicatorObject {
  PyObject ob_base;
  std::shared_ptr<Guarded> guarded;  // calls under way in other threads share it
};

PyTypeObject* communicator_type = nullptr;

Guarded& GuardedOf(PyObject* self) { return *reinterpret_cast<CommunicatorObject*>(self)->guarded; }

absl::Status Closed() { return absl::FailedPreconditionError("this communicator has been closed"); }

using Made = absl::StatusOr<std::unique_ptr<comm::Communicator>>;

PyObject* Wrap(PyTypeObject* type, std::shared_ptr<Session> session, Made made) {
  if (!made.ok()) return Raise(made.status());
  if (*made == nullptr) Py_RETURN_NONE;
  auto guarded = std::make_shared<Guarded>();
  guarded->session = std::move(session);
  guarded->communicator = *std::move(made);
  const comm::Communicator& communicator = *guarded->communicator;
  guarded->rank = communicator.rank();
  guarded->size = communicator.size();
  guarded->id = communicator.id();
  guarded->members.assign(communicator.members().begin(), communicator.members().end());
  const auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  auto* self = reinterpret_cast<CommunicatorObject*>(alloc(type, 0));
  if (self != nullptr) new (&self->guarded) std::shared_ptr<Guarded>(std::move(guarded));
  return reinterpret_cast<PyObject*>(self);
}

// Runs `use` on the communicator, without the GIL.
template <typename Use>
auto WithCommunicator(PyObject* self, Use use) -> decltype(use(std::declval<comm::Communicator&>())) {
  const std::shared_ptr<Guarded> guarded = reinterpret_cast<CommunicatorObject*>(self)->guarded;
  GilRelease release;
  runtime::MutexLock lock(guarded->mutex);
  if (guarded->communicator == nullptr) return Closed();
  return use(*guarded->communicator);
}

PyObject* NewCommunicator(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"runtime", "transports", "tuning", nullptr};
  PyObject* runtime = nullptr;
  const char *transports = "", *tuning = "";
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$ss:Communicator", const_cast<char**>(names), &runtime, &transports,
                                   &tuning)) {
    return nullptr;
  }
  std::shared_ptr<Session> session = SessionOf(runtime);
  if (session == nullptr) return nullptr;
  comm::CommunicatorOptions options;
  options.transports = transports;
  options.tuning = tuning;
  Made made = absl::UnknownError("");
  {
    GilRelease release;
    made = comm::Communicator::World(*session->runtime, options);
  }
  return Wrap(type, std::move(session), std::move(made));
}

void DeleteCommunicator(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  auto* const self = reinterpret_cast<CommunicatorObject*>(object);
  self->guarded.~shared_ptr();
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(type);
}

// The result of a started call where the program waits by itself.
PyObject* Started(std::unique_ptr<PendingCall> call) {
  const runtime::Work& work = call->work;
  if (work.Done() && !work.status().ok()) return Raise(work.status());  // refused: nobody needs to wait to learn it
  return NewWork(std::move(call));
}

// Waits, and gives the result of a call that has ended.
PyObject* Finished(std::unique_ptr<PendingCall> call) {
  const std::optional<absl::Status> status = WaitFor(call->work, runtime::Deadline::Infinite());
  Abandon(std::move(call));
  if (!status.has_value()) return nullptr;
  if (!status->ok()) return Raise(*status);
  Py_RETURN_NONE;
}

PyObject* Call(PyObject* self, const Operation& operation, const PassedArguments& passed) {
  SweepAbandoned();
  PreparedCall call;
  if (!call.Read(operation, passed)) return nullptr;
  const absl::Status open = WithCommunicator(self, [&](comm::Communicator& communicator) {
    call.Start(communicator);
    return absl::OkStatus();
  });
  if (!open.ok()) return Raise(open);
  return call.async ? Started(std::move(call.pending)) : Finished(std::move(call.pending));
}

template <size_t kIndex>
PyObject* CallOf(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  return Call(self, Operations()[kIndex], {values, count, names});
}

PyObject* Exchange(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  SweepAbandoned();
  PreparedExchange exchange;
  if (!exchange.Read({values, count, names})) return nullptr;
  const absl::Status open = WithCommunicator(self, [&](comm::Communicator& communicator) {
    exchange.Start(communicator);
    return absl::OkStatus();
  });
  if (!open.ok()) return Raise(open);
  return exchange.async() ? Started(std::move(exchange.pending())) : Finished(std::move(exchange.pending()));
}

PyObject* Subgroup(PyObject* self, PyObject* list) {
  std::vector<int> ranks;
  const Ref iterator(PyObject_GetIter(list));
  if (!iterator) return nullptr;
  while (Ref item{PyIter_Next(iterator.get())}) {
    const std::optional<int> rank = ReadInt(item.get(), 0);
    if (!rank.has_value()) return nullptr;
    ranks.push_back(*rank);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  Made made = WithCommunicator(self, [&](comm::Communicator& c) -> Made { return c.Subgroup(ranks); });
  return Wrap(Py_TYPE(self), GuardedOf(self).session, std::move(made));
}

PyObject* Duplicate(PyObject* self, PyObject*) {
  Made made = WithCommunicator(self, [&](comm::Communicator& c) -> Made { return c.Duplicate(); });
  return Wrap(Py_TYPE(self), GuardedOf(self).session, std::move(made));
}

PyObject* Shrink(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  static constexpr const char* kNames[] = {"timeout"};
  PyObject* bound[1];
  if (!Bind({values, count, names}, "shrink", kNames, 0, 1, bound)) return nullptr;
  const auto timeout = ReadSeconds(bound[0], std::chrono::minutes(1));
  if (!timeout.has_value()) return nullptr;
  const std::source_location site = CallSite();
  Made made = WithCommunicator(self, [&](comm::Communicator& c) -> Made { return c.Shrink(*timeout, site); });
  return Wrap(Py_TYPE(self), GuardedOf(self).session, std::move(made));
}

PyObject* Abort(PyObject* self, PyObject* reason) {
  const std::optional<std::string> text = ReadText(reason);
  if (!text.has_value()) return nullptr;
  const absl::Status open = WithCommunicator(self, [&](comm::Communicator& c) {
    c.Abort(*text);
    return absl::OkStatus();
  });
  if (!open.ok()) return Raise(open);
  Py_RETURN_NONE;
}

PyObject* Close(PyObject* self, PyObject*) {
  const absl::Status status = WithCommunicator(self, [&](comm::Communicator&) {
    GuardedOf(self).open.store(false, std::memory_order_relaxed);
    GuardedOf(self).communicator.reset();
    return absl::OkStatus();
  });
  (void)status;  // closed already
  Py_RETURN_NONE;
}

PyObject* Explain(PyObject* self, PyObject* args) {
  const char* name = nullptr;
  long long count = 0;
  PyObject* type = nullptr;
  if (!PyArg_ParseTuple(args, "sL|O:explain", &name, &count, &type)) return nullptr;
  const std::optional<comm::DataType> dtype = type == nullptr ? comm::DataType::kFloat32 : ReadDataType(type);
  if (!dtype.has_value()) return nullptr;
  for (const Operation& operation : Operations()) {
    if (std::string_view(operation.name) != name) continue;
    const absl::StatusOr<std::string> text = WithCommunicator(
        self,
        [&](comm::Communicator& c) -> absl::StatusOr<std::string> { return c.Explain(operation.kind, count, *dtype); });
    if (!text.ok()) return Raise(text.status());
    return PyUnicode_FromStringAndSize(text->data(), static_cast<Py_ssize_t>(text->size()));
  }
  PyErr_Format(PyExc_ValueError, "'%s' is no operation", name);
  return nullptr;
}

PyObject* Check(PyObject* self, PyObject*) {
  const absl::Status status = WithCommunicator(self, [](comm::Communicator& c) { return c.status(); });
  if (!status.ok()) return Raise(status);
  Py_RETURN_NONE;
}

// `read` makes an object of what never changes.
template <typename Read>
PyObject* Property(PyObject* self, Read read) {
  const Guarded& guarded = GuardedOf(self);
  return guarded.open.load(std::memory_order_relaxed) ? read(guarded) : Raise(Closed());
}
PyObject* GetRank(PyObject* self, void*) {
  return Property(self, [](const Guarded& guarded) { return PyLong_FromLong(guarded.rank); });
}
PyObject* GetSize(PyObject* self, void*) {
  return Property(self, [](const Guarded& guarded) { return PyLong_FromLong(guarded.size); });
}
PyObject* GetId(PyObject* self, void*) {
  return Property(self, [](const Guarded& guarded) { return PyLong_FromUnsignedLongLong(guarded.id); });
}
PyObject* GetMembers(PyObject* self, void*) {
  return Property(self, [](const Guarded& guarded) {
    Ref members(PyTuple_New(static_cast<Py_ssize_t>(guarded.members.size())));
    for (size_t i = 0; members && i < guarded.members.size(); ++i) {
      PyTuple_SetItem(members.get(), static_cast<Py_ssize_t>(i), PyLong_FromLong(guarded.members[i]));
    }
    return members.release();
  });
}

template <typename Function>
PyCFunction Method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

constexpr PyMethodDef kOtherMethods[] = {
    {"subgroup", Subgroup, METH_O,
     "subgroup(ranks): the group of these group ranks, in that order. Only its members call. Local."},
    {"duplicate", Duplicate, METH_NOARGS, "A group of the same members, whose operations are independent. Local."},
    {"abort", Abort, METH_O, "abort(reason): fails the group on all its members with AbortedError."},
    {"close", Close, METH_NOARGS, "Ends this communicator. Finish its operations first."},
    {"explain", Explain, METH_VARARGS,
     "explain(operation, count, dtype='float32'): how such a call would be served, for people."},
    {"check", Check, METH_NOARGS, "Raises the error that the group has failed with."},
};

template <size_t... kIndex>
std::vector<PyMethodDef> Methods(std::index_sequence<kIndex...>) {
  std::vector<PyMethodDef> methods = {
      {Operations()[kIndex].name, Method(CallOf<kIndex>), METH_FASTCALL | METH_KEYWORDS, Operations()[kIndex].doc}...};
  methods.insert(methods.end(), std::begin(kOtherMethods), std::end(kOtherMethods));
  methods.push_back(
      {"exchange", Method(Exchange), METH_FASTCALL | METH_KEYWORDS,
       "exchange(sends, receives, timeout=600, async_op=False, stream=None): messages in both directions, as "
       "one\ncall; both are lists of pairs (buffer, peer). None waits for another, in any order."});
  methods.push_back({"shrink", Method(Shrink), METH_FASTCALL | METH_KEYWORDS,
                     "shrink(timeout=60): the group of the survivors, after a rank has died. Blocks."});
  methods.push_back({nullptr, nullptr, 0, nullptr});
  return methods;
}

}  // namespace

Duplicated DuplicateOf(PyObject* communicator) {
  if (!PyObject_TypeCheck(communicator, communicator_type)) {
    PyErr_SetString(PyExc_TypeError, "this is no Communicator");
    return {};
  }
  Made made = WithCommunicator(communicator, [&](comm::Communicator& c) -> Made { return c.Duplicate(); });
  if (made.ok()) return {GuardedOf(communicator).session, *std::move(made)};
  Raise(made.status());
  return {};
}

bool AddCommunicator(PyObject* module) {
  constexpr size_t kOperations = 16;
  static std::vector<PyMethodDef> methods = Methods(std::make_index_sequence<kOperations>());
  static PyGetSetDef properties[] = {
      {"rank", GetRank, nullptr, "This process' rank in the group.", nullptr},
      {"size", GetSize, nullptr, "The number of members.", nullptr},
      {"id", GetId, nullptr, "The group's number, equal on all members.", nullptr},
      {"members", GetMembers, nullptr, "World ranks of the members, in the order of group ranks.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(NewCommunicator)},
      {Py_tp_dealloc, reinterpret_cast<void*>(DeleteCommunicator)},
      {Py_tp_methods, methods.data()},
      {Py_tp_getset, properties},
      {0, nullptr},
  };
  static PyType_Spec spec = {"dlaunch._comm.Communicator", sizeof(CommunicatorObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  communicator_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return Operations().size() == kOperations &&
         AddTo(module, "Communicator", reinterpret_cast<PyObject*>(communicator_type));
}

}  // namespace cohort::python
