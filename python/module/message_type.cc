#include "cohort/python/module/message_type.h"

#include <array>
#include <chrono>
#include <memory>
#include <new>
#include <utility>

#include "cohort/python/module/arguments.h"
#include "cohort/python/module/call_site.h"
#include "cohort/python/module/communicator.h"
#include "cohort/python/module/errors.h"
#include "cohort/python/module/messages.h"
#include "cohort/python/module/pending_call.h"
#include "cohort/python/module/session.h"

namespace cohort::python {
namespace {

struct MessagesObject {
  PyObject ob_base;
  std::shared_ptr<Session> session;
  std::unique_ptr<Messages> messages;
};

MessagesObject* Self(PyObject* object) { return reinterpret_cast<MessagesObject*>(object); }

PyObject* NewMessages(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* communicator = nullptr;
  if (!PyArg_ParseTuple(args, "O:Messages", &communicator)) return nullptr;
  Duplicated made = DuplicateOf(communicator);
  if (made.session == nullptr) return nullptr;
  const auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* const self = alloc(type, 0);
  if (self == nullptr) return nullptr;
  runtime::Engine& engine = made.session->runtime->engine();
  new (&Self(self)->session) std::shared_ptr<Session>(std::move(made.session));
  new (&Self(self)->messages)
      std::unique_ptr<Messages>(std::make_unique<Messages>(engine, std::move(made.communicator)));
  return self;
}

void DeleteMessages(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  {
    GilRelease release;
    Self(object)->messages.reset();
  }
  Self(object)->messages.~unique_ptr();
  Self(object)->session.~shared_ptr();
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(type);
}

struct Arguments {
  int peer = Messages::kAnyone;
  int64_t tag = 0;
  Messages::Options options;
};

bool ReadArguments(PyObject* const* values, Py_ssize_t count, PyObject* names, const char* method, bool writable,
                   Memory* memory, Arguments* arguments) {
  static constexpr const char* kNames[] = {"buffer", "peer", "tag", "timeout"};
  std::array<PyObject*, 4> bound;
  if (!Bind({values, count, names}, method, kNames, 2, 4, bound)) return false;
  if (!memory->Read(bound[0], writable, "buffer")) return false;
  const std::optional<int> peer = bound[1] == Py_None ? Messages::kAnyone : ReadInt(bound[1], 0);
  const auto timeout = ReadSeconds(bound[3], std::chrono::minutes(10));
  if (!peer.has_value() || !timeout.has_value()) return false;
  if (bound[1] != Py_None && *peer < 0) {
    PyErr_Format(PyExc_ValueError, "%s: a peer is a group rank, not %d", method, *peer);
    return false;
  }
  arguments->peer = *peer;
  arguments->tag = bound[2] == nullptr ? 0 : PyLong_AsLongLong(bound[2]);
  arguments->options = {*timeout, CallSite()};
  return PyErr_Occurred() == nullptr;
}

PyObject* Send(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  SweepAbandoned();
  auto call = std::make_unique<PendingCall>();
  Arguments arguments;
  if (!ReadArguments(values, count, names, "send", false, &call->in, &arguments)) return nullptr;
  if (arguments.peer == Messages::kAnyone) {
    PyErr_SetString(PyExc_ValueError, "send: a message goes to one peer");
    return nullptr;
  }
  {
    GilRelease release;
    call->work = Self(self)->messages->Send(call->in.buffer(), arguments.peer, arguments.tag, arguments.options);
  }
  return NewWork(std::move(call));
}

PyObject* Receive(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  SweepAbandoned();
  auto call = std::make_unique<PendingCall>();
  Arguments arguments;
  if (!ReadArguments(values, count, names, "receive", true, &call->out, &arguments)) return nullptr;
  call->source = std::make_shared<std::atomic<int>>(-1);
  {
    GilRelease release;
    call->work = Self(self)->messages->Receive(call->out.buffer(), arguments.peer, arguments.tag, arguments.options,
                                               call->source);
  }
  return NewWork(std::move(call));
}

PyCFunction Method(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace

bool AddMessages(PyObject* module) {
  static PyMethodDef methods[] = {
      {"send", Method(Send), METH_FASTCALL | METH_KEYWORDS,
       "send(buffer, peer, tag=0, timeout=600): starts a message to group rank `peer`; returns a Work."},
      {"receive", Method(Receive), METH_FASTCALL | METH_KEYWORDS,
       "receive(buffer, peer, tag=0, timeout=600): starts to receive the next message with this tag from `peer`, or "
       "from\n"
       "anyone where that is None; returns a Work, whose `source` is the sender."},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(NewMessages)},
      {Py_tp_dealloc, reinterpret_cast<void*>(DeleteMessages)},
      {Py_tp_methods, methods},
      {Py_tp_doc, const_cast<char*>("Messages(communicator): messages with tags among the members of a communicator.\n"
                                    "All members make it. Local.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"dlaunch._comm.Messages", sizeof(MessagesObject), 0, Py_TPFLAGS_DEFAULT, slots};
  return AddTo(module, "Messages", Ref(PyType_FromSpec(&spec)).get());
}

}  // namespace cohort::python
