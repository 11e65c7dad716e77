#include "runtime.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "base/units.h"
#include "device/status.h"

namespace gptrain {
namespace {

// Kernels are compiled for this compute capability and later ones.
constexpr int least_major = 8;

class CudaMemory final : public DeviceMemory {
 public:
  using DeviceMemory::DeviceMemory;
  // What fails here has failed before, in a call that has thrown.
  ~CudaMemory() override { cudaFree(data_); }
};

class CudaGraph final : public LaunchGraph {
 public:
  CudaGraph(cudaGraph_t graph, Stream stream) : stream_(stream) {
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(status, "making a CUDA graph");
  }
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  void launch() override { check_cuda(cudaGraphLaunch(executable_, stream_), "starting a CUDA graph"); }

 private:
  cudaGraphExec_t executable_ = nullptr;
  Stream stream_;
};

class CudaRuntime final : public Runtime {
 public:
  explicit CudaRuntime(int device);
  ~CudaRuntime() override;

  const Target& target() const override { return target_; }
  Stream stream() const override { return stream_; }
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override;
  void upload(void* device, const void* host, int64_t bytes) override;
  void download(void* host, const void* device, int64_t bytes) override;
  void synchronize() override;
  void begin_capture() override;
  std::unique_ptr<LaunchGraph> end_capture() override;

 private:
  Target target_;
  Stream stream_ = nullptr;
};

CudaRuntime::CudaRuntime(int device) : target_(cuda_target(device)) {
  check_cuda(cudaSetDevice(device), "taking the device");
  // The default stream would wait for every other one.
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
}

CudaRuntime::~CudaRuntime() { cudaStreamDestroy(stream_); }

std::unique_ptr<DeviceMemory> CudaRuntime::allocate(int64_t bytes) {
  if (bytes == 0) return std::make_unique<CudaMemory>(nullptr, 0);
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the device is sound: what it could not do is reported here
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory");
    throw Error(ExitCode::device, "cannot allocate {} on {}: {} of {} are free",
                format_bytes(static_cast<double>(bytes)), target_.name, format_bytes(static_cast<double>(free)),
                format_bytes(static_cast<double>(total)));
  }
  check_cuda(status, "allocating device memory");
  return std::make_unique<CudaMemory>(data, bytes);
}

// From pageable memory: the source has been read when the call returns.
void CudaRuntime::upload(void* device, const void* host, int64_t bytes) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
             "copying to the device");
}

void CudaRuntime::download(void* host, const void* device, int64_t bytes) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
             "copying from the device");
  synchronize();
}

void CudaRuntime::synchronize() { check_cuda(cudaStreamSynchronize(stream_), "waiting for the device"); }

void CudaRuntime::begin_capture() {
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a CUDA graph");
}

std::unique_ptr<LaunchGraph> CudaRuntime::end_capture() {
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream_, &graph), "capturing a CUDA graph");
  return std::make_unique<CudaGraph>(graph, stream_);
}

}  // namespace

int num_cuda_devices() {
  int count = 0;
  // Without a driver, or with one that is too old, there is no device to use.
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

Target cuda_target(int device) {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "looking for CUDA devices");
  if (device < 0 || device >= count)
    throw Error(ExitCode::device, "there is no CUDA device {}: this process sees {}", device, count);
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, device), "asking what the device is");
  if (properties.major < least_major) {
    throw Error(ExitCode::device, "device {} is a {} of compute capability {}.{}; gptrain needs {}.0 or later", device,
                properties.name, properties.major, properties.minor, least_major);
  }
  Target target;
  target.name = properties.name;
  for (const char byte : properties.uuid.bytes)
    target.identity += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  target.kind = Target::Kind::gpu;
  target.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  return target;
}

std::unique_ptr<Runtime> make_runtime(int device) { return std::make_unique<CudaRuntime>(device); }

}  // namespace gptrain
