#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/support/fake_nccl/fake_state.h"

namespace fake {

State& GlobalState() {
  static State state;
  return state;
}

bool AllDone(const TicketList& tickets) {
  return std::all_of(tickets.begin(), tickets.end(), [](const auto& ticket) { return ticket->done; });
}

struct Stream {
  TicketList tickets;
};
struct Event {
  TicketList tickets;
};

TicketList& TicketsOf(void* stream) {
  thread_local Stream own;
  TicketList& tickets = stream == nullptr ? own.tickets : static_cast<Stream*>(stream)->tickets;
  tickets.erase(std::remove_if(tickets.begin(), tickets.end(), [](const auto& ticket) { return ticket->done; }),
                tickets.end());
  return tickets;
}

namespace {
thread_local int current_device = 0;
constexpr int kDevices = 8;
}  // namespace
}  // namespace fake

using fake::GlobalState;
using Lock = cohort::runtime::MutexLock;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = fake::kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = fake::current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= fake::kDevices) return cudaErrorInvalidDevice;
  fake::current_device = device;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidDevice ? "invalid device ordinal" : "fake CUDA error";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = std::malloc(bytes);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new fake::Stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete reinterpret_cast<fake::Stream*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(GlobalState().mutex);
  const fake::TicketList tickets = fake::TicketsOf(stream);
  while (!fake::AllDone(tickets)) GlobalState().changed.Wait(GlobalState().mutex);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  cudaStreamSynchronize(stream);
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(GlobalState().mutex);
  const fake::TicketList& tickets = reinterpret_cast<fake::Event*>(event)->tickets;
  fake::TicketList& own = fake::TicketsOf(stream);
  own.insert(own.end(), tickets.begin(), tickets.end());
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new fake::Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<fake::Event*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(GlobalState().mutex);
  reinterpret_cast<fake::Event*>(event)->tickets = fake::TicketsOf(stream);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(GlobalState().mutex);
  return fake::AllDone(reinterpret_cast<fake::Event*>(event)->tickets) ? cudaSuccess : cudaErrorNotReady;
}
}
