#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/fake_nccl/fake_state.h"

namespace fake {
namespace {

struct Event {
  TaskPointer task;
  std::shared_ptr<Graph> captured;  // recorded on a stream that was being captured
};
thread_local int current_device = 0;
constexpr int kDevices = 8;
int compute_capability_major = 9;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
// Guarded by State::mutex.
int allocations = 0;    // of pinned and device memory
int until_refused = 0;  // allocations until one fails; 0: none does
int captures = 0;       // streams that are being captured

cudaError_t Allocate(void** pointer, size_t bytes) {
  const cohort::runtime::MutexLock lock(GlobalState().mutex);
  if (captures > 0 && capture_mode != cudaStreamCaptureModeRelaxed) return cudaErrorStreamCaptureUnsupported;
  if (until_refused > 0 && --until_refused == 0) return cudaErrorMemoryAllocation;
  *pointer = std::malloc(std::max<size_t>(bytes, 1));
  if (*pointer == nullptr) return cudaErrorMemoryAllocation;
  ++allocations;
  return cudaSuccess;
}
void EndCaptureOf(Stream& stream) {
  if (std::exchange(stream.began_capture, false)) --captures;
}
cudaError_t Release(void* pointer) {
  const cohort::runtime::MutexLock lock(GlobalState().mutex);
  if (pointer != nullptr) --allocations;
  std::free(pointer);
  return cudaSuccess;
}

}  // namespace

int CurrentDevice() { return current_device; }

}  // namespace fake

using fake::GlobalState;
using fake::StreamOf;
using Lock = cohort::runtime::MutexLock;

extern "C" {

int FakeCudaLiveAllocations() {
  const Lock lock(GlobalState().mutex);
  return fake::allocations;
}

void FakeCudaRefuseAllocation(int k) {
  const Lock lock(GlobalState().mutex);
  fake::until_refused = k;
}

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
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? fake::compute_capability_major : 1;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidDevice ? "invalid device ordinal" : "fake CUDA error";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaMalloc(void** pointer, size_t bytes) { return fake::Allocate(pointer, bytes); }
cudaError_t cudaFree(void* pointer) { return fake::Release(pointer); }
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) { return fake::Allocate(pointer, bytes); }
cudaError_t cudaFreeHost(void* pointer) { return fake::Release(pointer); }
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // may be captured
  cudaThreadExchangeStreamCaptureMode(&mode);
  const cudaError_t error = fake::Allocate(pointer, bytes);
  cudaThreadExchangeStreamCaptureMode(&mode);
  return error;
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  const Lock lock(GlobalState().mutex);
  --fake::allocations;
  fake::SubmitSimple(stream, [pointer] { std::free(pointer); });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new fake::Stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(GlobalState().mutex);
  fake::EndCaptureOf(StreamOf(stream));
  delete reinterpret_cast<fake::Stream*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(GlobalState().mutex);
  const fake::TaskPointer last = StreamOf(stream).last;
  while (last != nullptr && !last->done) GlobalState().changed.Wait(GlobalState().mutex);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const Lock lock(GlobalState().mutex);
  fake::SubmitSimple(stream, [to, from, bytes] {
    if (bytes > 0) std::memmove(to, from, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t stream) {
  const Lock lock(GlobalState().mutex);
  fake::SubmitSimple(stream, [=] {
    for (size_t row = 0; row < height; ++row) {
      std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    }
  });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* context) {
  const Lock lock(GlobalState().mutex);
  fake::SubmitSimple(stream, [function, context] { function(context); });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t handle_of_event, unsigned) {
  const Lock lock(GlobalState().mutex);
  const auto& event = *reinterpret_cast<fake::Event*>(handle_of_event);
  fake::Stream& stream = StreamOf(handle);
  if (event.captured != nullptr) {
    stream.capture = event.captured;  // a fork: what follows belongs to the graph, too
    return cudaSuccess;
  }
  if (stream.capture != nullptr) return cudaErrorStreamCaptureIsolation;
  const auto task = std::make_shared<fake::Task>();
  fake::Follow(task, event.task);
  fake::Enqueue(stream, {task});
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new fake::Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(GlobalState().mutex);
  delete reinterpret_cast<fake::Event*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  const Lock lock(GlobalState().mutex);
  auto& event = *reinterpret_cast<fake::Event*>(handle);
  event.captured = StreamOf(stream).capture;
  event.task = event.captured != nullptr ? nullptr : StreamOf(stream).last;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  const Lock lock(GlobalState().mutex);
  const auto& event = *reinterpret_cast<fake::Event*>(handle);
  if (event.captured != nullptr) return cudaErrorCapturedEvent;
  return event.task == nullptr || event.task->done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, fake::capture_mode);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Lock lock(GlobalState().mutex);
  *status = StreamOf(stream).capture != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Lock lock(GlobalState().mutex);
  StreamOf(stream).capture = std::make_shared<fake::Graph>();
  StreamOf(stream).began_capture = true;
  ++fake::captures;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(GlobalState().mutex);
  *graph = reinterpret_cast<cudaGraph_t>(new fake::Graph(*StreamOf(stream).capture));
  StreamOf(stream).capture = nullptr;
  fake::EndCaptureOf(StreamOf(stream));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = reinterpret_cast<cudaGraphExec_t>(new fake::Graph(*reinterpret_cast<fake::Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const Lock lock(GlobalState().mutex);
  for (const fake::Operation& operation : reinterpret_cast<fake::Graph*>(executable)->operations) {
    operation(StreamOf(stream));
  }
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<fake::Graph*>(executable);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<fake::Graph*>(graph);
  return cudaSuccess;
}
}
