// Implements Links with NCCL.
//
// A communicator that has failed, or whose peer is gone, leaves work on the device that never ends; aborting it ends
// that work and everything that waits for it. The heartbeat watches peers in other processes and ends this process;
// peers in this process share a flag.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cuda_runtime.h>
#include <exception>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/device_groups.h"
#include "comm/texts.h"
#include "device/status.h"
#include "device_communicator.h"

namespace gptrain::inline cuda {
namespace {

using Clock = std::chrono::steady_clock;
using Flag = std::atomic<bool>;

bool is_fault(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

void check_nccl(ncclResult_t result, const char* what) {
  if (is_fault(result)) throw Error(ExitCode::device, "{}: NCCL error: {}", what, ncclGetErrorString(result));
}

// Returns the flag that says whether a rank of group `id` in this process has failed. A set flag stays, for ranks that
// come after the failed one has left.
std::shared_ptr<Flag> flag_of(const std::string& id) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<Flag>> flags;
  const std::lock_guard lock(mutex);
  std::erase_if(flags, [](const auto& entry) { return entry.second.use_count() == 1 && !*entry.second; });
  std::shared_ptr<Flag>& flag = flags[id];
  if (flag == nullptr) flag = std::make_shared<Flag>(false);
  return flag;
}

// One rank's NCCL communicator, shared by the links that use it. Used by one thread.
class Group {
 public:
  Group(int rank, int size, const std::string& id, int most_blocks, double timeout_seconds);
  // Waits for the communicator's work, unless it was aborted.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  ncclComm_t handle() const { return handle_; }
  // Returns once the call with status `result` has queued its work.
  void await_queued(ncclResult_t result, const char* what);
  // Throws if the group is unusable.
  void check();
  // Returns true if its work must not be waited for: a rank of this process has failed, or an exception is in flight.
  bool is_lost() const { return *failed_ || std::uncaught_exceptions() > exceptions_; }
  // Aborts the group's work on the device and sets the flag for peers in this process.
  void abort();

 private:
  const std::chrono::duration<double> timeout_;
  const std::shared_ptr<Flag> failed_;
  const int exceptions_ = std::uncaught_exceptions();
  ncclComm_t handle_ = nullptr;
};

Group::Group(int rank, int size, const std::string& id, int most_blocks, double timeout_seconds)
    : timeout_(timeout_seconds), failed_(flag_of(id)) {
  ncclUniqueId unique;
  if (id.size() != sizeof unique.internal)
    throw Error(
        ExitCode::device,
        "rank 0 has sent an NCCL id of {} bytes, but this rank's NCCL has ids of {}: start all ranks with one build",
        id.size(), sizeof unique.internal);
  std::copy(id.begin(), id.end(), unique.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = most_blocks;
  try {
    await_queued(ncclCommInitRankConfig(&handle_, size, unique, rank, &config), "making a group of devices");
  } catch (...) {
    abort();
    throw;
  }
}

Group::~Group() {
  if (handle_ == nullptr) return;
  // Ignores errors: nothing can be reported here.
  ncclResult_t state = ncclCommFinalize(handle_);
  const auto start = Clock::now();
  while (state == ncclInProgress && Clock::now() - start < timeout_) {
    if (ncclCommGetAsyncError(handle_, &state) != ncclSuccess) break;
    std::this_thread::yield();
  }
  if (state == ncclSuccess) {
    ncclCommDestroy(handle_);
  } else {
    abort();
  }
}

void Group::abort() {
  *failed_ = true;
  if (handle_ != nullptr) ncclCommAbort(std::exchange(handle_, nullptr));
}

void Group::await_queued(ncclResult_t result, const char* what) {
  const auto start = Clock::now();
  while (result == ncclInProgress) {
    check_nccl(ncclCommGetAsyncError(handle_, &result), what);
    if (result != ncclInProgress) break;
    if (*failed_) throw PeerGone(fmt::format("{}: another rank of the group has failed", what));
    if (Clock::now() - start > timeout_) {
      throw Error(ExitCode::device, "{}: not all ranks have come within {} seconds (comm.timeout_seconds)", what,
                  timeout_.count());
    }
    std::this_thread::yield();
  }
  check_nccl(result, what);
}

void Group::check() {
  if (*failed_) throw PeerGone("another rank of a group of devices has failed");
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(handle_, &state);
  if (asked == ncclSuccess && (state == ncclSuccess || state == ncclInProgress)) return;
  throw Error(ExitCode::device, "exchanging between devices: NCCL error: {} ({})",
              ncclGetErrorString(asked == ncclSuccess ? state : asked), ncclGetLastError(handle_));
}

// All groups of one rank, on all its lanes. If one fails, the work of all is aborted; otherwise the device would never
// become idle.
class Groups {
 public:
  Groups() = default;
  ~Groups() {
    if (std::any_of(groups_.begin(), groups_.end(), [](const auto& group) { return group->is_lost(); })) abort();
  }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  Group& add(int rank, int size, const std::string& id, int most_blocks, double timeout_seconds) {
    return *groups_.emplace_back(std::make_unique<Group>(rank, size, id, most_blocks, timeout_seconds));
  }
  void check() {
    or_abort([&] {
      for (const auto& group : groups_) group->check();
    });
  }
  template <typename Body>
  void or_abort(const Body& body) {
    try {
      body();
    } catch (...) {
      abort();
      throw;
    }
  }

 private:
  // Aborts all groups together (possible from NCCL 2.22 on): one by one, each abort would wait for the device, where
  // another group's work may be queued before its own (github.com/NVIDIA/nccl/issues/1013). Returns when all are over:
  // NCCL's end of a group waits for aborts even if its communicators do not block (destroyFlag in its src/group.cc).
  void abort() {
    int version = 0;
    const bool is_grouped = ncclGetVersion(&version) == ncclSuccess && version >= NCCL_VERSION(2, 22, 0);
    if (is_grouped) ncclGroupStart();
    for (const auto& group : groups_) group->abort();
    if (is_grouped) ncclGroupEnd();
  }

  std::vector<std::unique_ptr<Group>> groups_;
};

// A lane's second stream, for sums, with events that order it with the lane's own stream.
class SumQueue {
 public:
  explicit SumQueue(Stream moves) : moves_(moves) {
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities of streams");
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "making a stream for sums");
    for (cudaEvent_t* const event : {&moved_, &summed_[0], &summed_[1]})
      check_cuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event");
  }
  // Ignores errors: nothing can be reported here.
  ~SumQueue() {
    for (const cudaEvent_t event : {moved_, summed_[0], summed_[1]}) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
  }
  SumQueue(const SumQueue&) = delete;
  SumQueue& operator=(const SumQueue&) = delete;

  Stream stream() const { return stream_; }
  void follow_moves() {
    check_cuda(cudaEventRecord(moved_, moves_), "marking what has come from devices");
    check_cuda(cudaStreamWaitEvent(stream_, moved_), "waiting for what comes from devices");
  }
  void mark(int half) { check_cuda(cudaEventRecord(summed_[half], stream_), "marking sums over devices"); }
  void moves_follow(int half) {
    check_cuda(cudaStreamWaitEvent(moves_, summed_[half]), "waiting for sums over devices");
  }

 private:
  const Stream moves_;
  Stream stream_ = nullptr;
  cudaEvent_t moved_ = nullptr, summed_[2] = {};
};

class NcclLinks final : public Links {
 public:
  NcclLinks(std::shared_ptr<Groups> groups, Group& group, int rank, int size, Stream stream,
            std::shared_ptr<SumQueue> sums)
      : groups_(std::move(groups)), group_(group), rank_(rank), size_(size), stream_(stream), sums_(std::move(sums)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Stream stream() const override { return stream_; }
  Stream sums() const override { return sums_->stream(); }
  void sums_follow_moves() override { sums_->follow_moves(); }
  void mark_sums(int half) override { sums_->mark(half); }
  void moves_follow_sums(int half) override { sums_->moves_follow(half); }

  void exchange(std::span<const Transfer> transfers) override {
    const char* const what = "exchanging between devices";
    queue(what, [&](ncclComm_t group) {
      check_nccl(ncclGroupStart(), what);
      ncclResult_t queued = ncclSuccess;
      for (size_t i = 0; i < transfers.size() && !is_fault(queued); ++i) {
        const Transfer& t = transfers[i];
        const auto bytes = static_cast<size_t>(t.bytes);
        queued = t.in != nullptr ? ncclSend(t.in, bytes, ncclInt8, t.peer, group, stream_)
                                 : ncclRecv(t.out, bytes, ncclInt8, t.peer, group, stream_);
      }
      // Ends the group after a fault too: an abort would otherwise only be queued as one more call in it.
      const ncclResult_t ended = ncclGroupEnd();
      return is_fault(queued) ? queued : ended;
    });
  }
  void all_gather(const void* in, void* out, int64_t bytes) override {
    queue("gathering from devices", [&](ncclComm_t group) {
      return ncclAllGather(in, out, static_cast<size_t>(bytes), ncclInt8, group, stream_);
    });
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    queue("sending to devices", [&](ncclComm_t group) {
      return ncclBroadcast(data, data, static_cast<size_t>(bytes), ncclInt8, root, group, stream_);
    });
  }
  void synchronize() override {
    for (;;) {
      const cudaError_t status = cudaStreamQuery(stream_);
      if (status != cudaErrorNotReady) return check_cuda(status, "waiting for devices");
      groups_->check();
      std::this_thread::yield();
    }
  }

 private:
  template <typename Call>
  void queue(const char* what, const Call& call) {
    groups_->check();
    groups_->or_abort([&] { group_.await_queued(call(group_.handle()), what); });
  }

  const std::shared_ptr<Groups> groups_;
  Group& group_;
  const int rank_, size_;
  const Stream stream_;
  const std::shared_ptr<SumQueue> sums_;  // shared by the lane's groups
};

// Returns a new id on rank 0, "" on others.
std::string new_id(int rank) {
  if (rank > 0) return {};
  ncclUniqueId id;
  check_nccl(ncclGetUniqueId(&id), "naming a group of devices");
  return {id.internal, sizeof id.internal};
}

// Returns the thread blocks that a group may use: at most an eighth of the multiprocessors, as lanes come before
// products, and few enough for blocks of every lane's groups to fit on the device together.
int blocks_of_group(size_t num_lanes) {
  constexpr int least = 8, most = 16;
  int device = 0, processors = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "asking for processors");
  return std::clamp(processors / static_cast<int>(num_lanes), 1, std::clamp(processors / 8, least, most));
}

// Makes NCCL connect the ranks in the ways that the group will use.
void connect(const LinkedGroup& group, Communicator& links) {
  std::byte* const scratch = group.scratch->data();
  if (group.one_way) {
    if (links.rank() == 0) {
      links.send(scratch, 1, DType::u8, 1);
    } else {
      links.receive(scratch, 1, DType::u8, 0);
    }
  } else {
    if (group.in_pairs) links.all_to_all(scratch, scratch + links.size(), 1, DType::u8);
    links.all_gather(scratch, scratch + links.size(), 1, DType::u8);
  }
  links.synchronize();
}

}  // namespace

}  // namespace gptrain::cuda

namespace gptrain::inline comm {

bool has_device_links() { return true; }

std::vector<std::unique_ptr<Communicator>> make_linked_communicators(std::span<const LinkedGroup> groups,
                                                                     double timeout_seconds) {
  const auto made = std::make_shared<Groups>();
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::map<SideQueue*, std::shared_ptr<SumQueue>> queues;
  for (const LinkedGroup& group : groups) {
    std::shared_ptr<SumQueue>& sums = queues[group.queue];
    if (!sums) sums = std::make_shared<SumQueue>(static_cast<Stream>(group.queue->handle()));
  }
  for (const LinkedGroup& group : groups) {
    const int rank = group.host->rank(), size = group.host->size();
    const std::string id = broadcast_text(group.host, new_id(rank), 0);
    const int blocks = group.has_few_bytes ? 1 : blocks_of_group(queues.size());
    Group& links = made->add(rank, size, id, blocks, timeout_seconds);
    communicators.push_back(make_device_communicator(
        std::make_unique<NcclLinks>(made, links, rank, size, static_cast<Stream>(group.queue->handle()),
                                    queues.at(group.queue)),
        *group.scratch, group.in_pairs));
  }
  if (groups.empty()) return communicators;
  for (size_t i = 0; i < groups.size(); ++i) connect(groups[i], *communicators[i]);
  groups.front().queue->while_waiting([weak = std::weak_ptr(made)] {
    if (const auto alive = weak.lock()) alive->check();
  });
  return communicators;
}

}  // namespace gptrain::comm
