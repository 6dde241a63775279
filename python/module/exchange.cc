#include "cohort/python/module/exchange.h"

#include <array>
#include <utility>

#include "cohort/comm/batch.h"
#include "cohort/python/module/call_site.h"

namespace cohort::python {

bool PreparedExchange::Read(const PassedArguments& passed) {
  static constexpr const char* kNames[] = {"sends", "receives", "timeout", "async_op", "stream"};
  std::array<PyObject*, 5> bound;
  if (!Bind(passed, "exchange", kNames, 2, 2, bound)) return false;
  if (!ReadMessages(bound[0], false) || !ReadMessages(bound[1], true)) return false;
  const auto timeout = ReadSeconds(bound[2], options_.timeout);
  const std::optional<bool> is_async = ReadBool(bound[3], false);
  if (!timeout.has_value() || !is_async.has_value()) return false;
  options_.timeout = *timeout;
  async_ = *is_async;
  if (bound[4] != nullptr && bound[4] != Py_None) options_.stream = PyLong_AsVoidPtr(bound[4]);
  if (PyErr_Occurred() != nullptr) return false;
  site_ = CallSite();
  return true;
}

bool PreparedExchange::ReadMessages(PyObject* list, bool receives) {
  const Ref iterator(PyObject_GetIter(list));
  if (!iterator) return false;
  while (Ref pair{PyIter_Next(iterator.get())}) {
    if (!PyTuple_Check(pair.get()) || PyTuple_Size(pair.get()) != 2) {
      PyErr_SetString(PyExc_TypeError, "exchange: a message is a pair (buffer, peer)");
      return false;
    }
    Memory memory;
    if (!memory.Read(PyTuple_GetItem(pair.get(), 0), receives, "buffer")) return false;
    const std::optional<int> peer = ReadInt(PyTuple_GetItem(pair.get(), 1), -1);
    if (!peer.has_value()) return false;
    messages_.push_back({pending_->more.size(), *peer, receives});
    pending_->more.push_back(std::move(memory));
  }
  return PyErr_Occurred() == nullptr;
}

void PreparedExchange::Start(comm::Communicator& communicator) {
  comm::Batch batch(communicator);
  for (const Message& message : messages_) {
    const comm::Buffer& buffer = pending_->more[message.memory].buffer();
    if (message.receives) {
      batch.Recv(buffer, message.peer, options_, site_);
    } else {
      batch.Send(buffer, message.peer, options_, site_);
    }
  }
  pending_->work = batch.Submit();
}

}  // namespace cohort::python
