#include "cohort/python/module/session.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/python/module/arguments.h"
#include "cohort/python/module/errors.h"

namespace cohort::python {
namespace {

struct RuntimeObject {
  PyObject ob_base;
  std::shared_ptr<Session> session;
};

PyTypeObject* runtime_type = nullptr;

// Takes the GIL in a thread that has given it up, or never had it.
class GilHold {
 public:
  GilHold() : state_(PyGILState_Ensure()) {}
  ~GilHold() { PyGILState_Release(state_); }
  GilHold(const GilHold&) = delete;
  GilHold& operator=(const GilHold&) = delete;

 private:
  const PyGILState_STATE state_;
};

// The text of the exception that is set, which is cleared.
std::string TakeException() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  const Ref text(PyObject_Str(value != nullptr ? value : Py_None));
  const char* read = text ? PyUnicode_AsUTF8AndSize(text.get(), nullptr) : nullptr;
  std::string message = read == nullptr ? "unknown exception" : read;
  PyErr_Clear();
  Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
  return message;
}

PyObject* Text(std::string_view text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
}

PyObject* NewRuntime(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"timeout", "progress_thread", "stays", "put", "get", "rank", "world_size", nullptr};
  PyObject *timeout = nullptr, *put = nullptr, *get = nullptr;
  int progress = 0, stays = 0, rank = 0, size = 1;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OppOOii:Runtime", const_cast<char**>(names), &timeout, &progress,
                                   &stays, &put, &get, &rank, &size)) {
    return nullptr;
  }
  runtime::RuntimeOptions options;
  const auto seconds = ReadSeconds(timeout, options.init_timeout);
  if (!seconds.has_value()) return nullptr;
  options.init_timeout = *seconds;
  options.progress_thread = progress != 0;
  options.stays = stays != 0;
  auto session = std::make_shared<Session>();
  if (put != nullptr && get != nullptr) {
    session->store = std::make_unique<PythonStore>(put, get);
    options.bootstrap = runtime::BootstrapFromStore(session->store.get(), rank, size);
  }
  absl::StatusOr<std::unique_ptr<runtime::Runtime>> joined = absl::UnknownError("");
  {
    GilRelease release;
    joined = runtime::Runtime::Init(std::move(options));
  }
  if (!joined.ok()) {
    if (session->store == nullptr || !session->store->interrupted()) return Raise(joined.status());
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    return nullptr;
  }
  session->runtime = *std::move(joined);
  const auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  auto* self = reinterpret_cast<RuntimeObject*>(alloc(type, 0));
  if (self != nullptr) new (&self->session) std::shared_ptr<Session>(std::move(session));
  return reinterpret_cast<PyObject*>(self);
}

void DeleteRuntime(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  reinterpret_cast<RuntimeObject*>(object)->session.~shared_ptr();
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(type);
}

runtime::Runtime& RuntimeOf(PyObject* self) { return *reinterpret_cast<RuntimeObject*>(self)->session->runtime; }

PyObject* Finalize(PyObject* self, PyObject*) {
  absl::Status status;
  {
    GilRelease release;
    status = RuntimeOf(self).Finalize();
  }
  if (!status.ok()) return Raise(status);
  Py_RETURN_NONE;
}

std::optional<runtime::VariableCall::Kind> KindOf(std::string_view name) {
  using Kind = runtime::VariableCall::Kind;
  static constexpr std::pair<std::string_view, Kind> kKinds[] = {
      {"get", Kind::kGet},       {"set", Kind::kSet},     {"add", Kind::kAdd}, {"compare_set", Kind::kCompareSet},
      {"delete", Kind::kDelete}, {"count", Kind::kCount},
  };
  for (const auto& [known, kind] : kKinds) {
    if (name == known) return kind;
  }
  return std::nullopt;
}

// Runtime::CallVariable, for dlaunch.torch's store.
PyObject* CallVariable(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"kind", "key", "value", "expected", "amount", "timeout", nullptr};
  const char *kind = nullptr, *key = "", *value = "", *expected = "";
  Py_ssize_t key_size = 0, value_size = 0, expected_size = 0;
  long long amount = 0;
  double seconds = 60;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|s#y#y#Ld:variable", const_cast<char**>(names), &kind, &key,
                                   &key_size, &value, &value_size, &expected, &expected_size, &amount, &seconds)) {
    return nullptr;
  }
  const auto known = KindOf(kind);
  if (!known.has_value()) {
    PyErr_Format(PyExc_ValueError, "%s is no call on a variable: get, set, add, compare_set, delete, count", kind);
    return nullptr;
  }
  const runtime::VariableCall call = {.kind = *known,
                                      .key = std::string(key, static_cast<size_t>(key_size)),
                                      .value = std::string(value, static_cast<size_t>(value_size)),
                                      .expected = std::string(expected, static_cast<size_t>(expected_size)),
                                      .amount = amount};
  absl::StatusOr<runtime::VariableResult> result = absl::UnknownError("");
  {
    GilRelease release;
    const std::chrono::duration<double> limit(std::clamp(seconds, 0.0, 1e9));
    result = RuntimeOf(self).CallVariable(
        call, runtime::Deadline::After(std::chrono::duration_cast<std::chrono::nanoseconds>(limit)));
  }
  if (absl::IsNotFound(result.status())) Py_RETURN_NONE;
  if (!result.ok()) return Raise(result.status());
  return Py_BuildValue("Oy#L", result->found ? Py_True : Py_False, result->value.data(),
                       static_cast<Py_ssize_t>(result->value.size()), static_cast<long long>(result->number));
}

PyObject* GetIdentity(PyObject* self, void*) {
  const runtime::Identity& identity = RuntimeOf(self).identity();
  const Ref nodes(PyTuple_New(static_cast<Py_ssize_t>(identity.nodes.size())));
  if (!nodes) return nullptr;
  for (size_t i = 0; i < identity.nodes.size(); ++i) {
    const runtime::NodeInfo& node = identity.nodes[i];
    PyObject* const item = Py_BuildValue("{s:N,s:i,s:i}", "name", Text(node.name), "first_rank", node.first_rank,
                                         "ranks", node.rank_count);
    if (item == nullptr) return nullptr;
    PyTuple_SetItem(nodes.get(), static_cast<Py_ssize_t>(i), item);
  }
  return Py_BuildValue("{s:N,s:K,s:i,s:i,s:i,s:i,s:i,s:O}", "job_id", Text(identity.job_id), "epoch",
                       static_cast<unsigned long long>(identity.epoch), "rank", identity.rank, "world_size",
                       identity.world_size, "node", identity.node, "local_rank", identity.local_rank,
                       "local_world_size", identity.local_world_size, "nodes", nodes.get());
}

PyObject* GetRank(PyObject* self, void*) { return PyLong_FromLong(RuntimeOf(self).rank()); }
PyObject* GetWorldSize(PyObject* self, void*) { return PyLong_FromLong(RuntimeOf(self).world_size()); }
PyObject* GetFinalized(PyObject* self, void*) { return PyBool_FromLong(RuntimeOf(self).finalized()); }

}  // namespace

absl::Status PythonStore::Put(std::string_view key, std::string_view value) {
  GilHold hold;
  const Ref done(PyObject_CallFunction(put_.get(), "s#y#", key.data(), static_cast<Py_ssize_t>(key.size()),
                                       value.data(), static_cast<Py_ssize_t>(value.size())));
  if (!done) return absl::UnavailableError("the program's store: " + TakeException());
  return absl::OkStatus();
}

absl::StatusOr<std::string> PythonStore::Get(std::string_view key, runtime::Deadline deadline) {
  GilHold hold;
  const double seconds =
      deadline.infinite() ? 1e9 : std::chrono::duration_cast<std::chrono::duration<double>>(deadline.left()).count();
  const Ref value(PyObject_CallFunction(get_.get(), "s#d", key.data(), static_cast<Py_ssize_t>(key.size()), seconds));
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (!value || PyBytes_AsStringAndSize(value.get(), &data, &size) != 0) {
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0) {
      PyErr_Clear();
      interrupted_ = true;
      return absl::CancelledError("interrupted");
    }
    return absl::DeadlineExceededError("the program's store: " + TakeException());
  }
  return std::string(data, static_cast<size_t>(size));
}

Session::~Session() {
  GilRelease release;
  runtime.reset();
}

bool AddRuntime(PyObject* module) {
  static PyMethodDef methods[] = {
      {"finalize", Finalize, METH_NOARGS,
       "Ends in order, without waiting for other ranks. Raises a failure that no call has reported yet."},
      {"variable", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(CallVariable)),
       METH_VARARGS | METH_KEYWORDS,
       "variable(kind, key='', value=b'', expected=b'', amount=0, timeout=60): one call on the job's variables; "
       "(found, value, number), or None if the time of a get ran out."},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyGetSetDef properties[] = {
      {"identity", GetIdentity, nullptr, "Everything this rank knows about itself and its world, as a dict.", nullptr},
      {"rank", GetRank, nullptr, "This process' rank in the job.", nullptr},
      {"world_size", GetWorldSize, nullptr, "The number of ranks of the job.", nullptr},
      {"finalized", GetFinalized, nullptr, "True after finalize().", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(NewRuntime)},
      {Py_tp_dealloc, reinterpret_cast<void*>(DeleteRuntime)},
      {Py_tp_methods, methods},
      {Py_tp_getset, properties},
      {Py_tp_doc, const_cast<char*>("Joins this process to its job. Blocks until it knows who it is.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"dlaunch.Runtime", sizeof(RuntimeObject), 0, Py_TPFLAGS_DEFAULT, slots};
  runtime_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return AddTo(module, "Runtime", reinterpret_cast<PyObject*>(runtime_type));
}

std::shared_ptr<Session> SessionOf(PyObject* object) {
  if (!PyObject_TypeCheck(object, runtime_type)) {
    PyErr_SetString(PyExc_TypeError, "a communicator is made from a Runtime");
    return nullptr;
  }
  return reinterpret_cast<RuntimeObject*>(object)->session;
}

}  // namespace cohort::python
