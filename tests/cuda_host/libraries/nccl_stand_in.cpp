#include "nccl_stand_in.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "streams.h"

namespace {

using Bytes = std::vector<std::byte>;

// Longest time that an abort waits for work, much longer than any work takes.
constexpr std::chrono::seconds longest_abort{10};

std::mutex mutex;  // guards all of the following, and all members of Room and ncclComm
std::condition_variable changed;
std::mt19937_64 random_numbers;
nccl_stand_in::Failure failure;
std::vector<std::string> wrong_uses;
int num_live = 0, last_most_blocks = 0;

// The ranks that were made with one id.
struct Room {
  int size = 0;
  std::set<int> ranks;
  std::map<std::pair<int, int>, std::deque<Bytes>> sent;  // by sender and receiver
};
std::map<std::string, std::shared_ptr<Room>> rooms;

void note(const std::string& wrong_use) { wrong_uses.push_back(wrong_use); }

}  // namespace

struct ncclComm {
  int rank = 0;
  std::shared_ptr<Room> room;
  std::thread::id thread;
  std::map<std::string, int, std::less<>> calls;
  bool in_progress = false;
  bool never = false;                 // stays in progress
  uint64_t answers_left = 0;          // answers "in progress" before the next result
  ncclResult_t result = ncclSuccess;  // result after them
  int queued = 0;                     // pieces of work in streams
  bool finalizing = false, aborted = false;
};

namespace {

struct Move {
  const void* in;  // null: a receive
  void* out;       // null: a send
  size_t bytes;
  int peer;
};

// Calls of one thread between ncclGroupStart and ncclGroupEnd.
struct OpenGroup {
  int depth = 0;
  std::vector<std::pair<std::pair<ncclComm_t, cudaStream_t>, std::vector<Move>>> moves;
  std::vector<ncclComm_t> aborts;
};
thread_local OpenGroup open_group;

// Counts the call. Returns true if it is the one that fails.
bool fails(std::map<std::string, int, std::less<>>& calls, int rank, const char* call) {
  const int nth = ++calls[call];
  return failure.call == call && failure.rank == rank && failure.nth == nth;
}

// Begins a call on a communicator whose last call must be over.
void enter(ncclComm_t comm, const char* call) {
  if (comm->aborted) note(std::string(call) + " after an abort");
  if (comm->in_progress) note(std::string(call) + " while a call is in progress");
  if (comm->result != ncclSuccess) note(std::string(call) + " after an error");
  if (comm->thread != std::this_thread::get_id()) note(std::string(call) + " in another thread");
}

// Returns a call's answer: an error, the wanted result, or "in progress" before it.
ncclResult_t answer(ncclComm_t comm, const char* call) {
  const bool failed = fails(comm->calls, comm->rank, call);
  if (failed && !failure.later && !failure.never) return comm->result = failure.result;
  comm->never = failed && failure.never;
  comm->answers_left = failed ? 1 + random_numbers() % 3 : random_numbers() % 4;
  comm->result = failed && failure.later ? failure.result : ncclSuccess;
  comm->in_progress = comm->never || comm->answers_left > 0;
  return comm->in_progress ? ncclInProgress : ncclSuccess;
}

bool has_joined(const Room& room) { return static_cast<int>(room.ranks.size()) == room.size; }

// Sends first, then waits for each message or an abort. Called by a stream's thread.
void run_moves(ncclComm_t comm, const std::vector<Move>& moves) {
  std::unique_lock lock(mutex);
  for (const Move& move : moves) {
    if (move.in == nullptr) continue;
    const auto* const first = static_cast<const std::byte*>(move.in);
    comm->room->sent[{comm->rank, move.peer}].emplace_back(first, first + move.bytes);
  }
  changed.notify_all();
  for (const Move& move : moves) {
    if (move.out == nullptr) continue;
    auto& messages = comm->room->sent[{move.peer, comm->rank}];
    changed.wait(lock, [&] { return comm->aborted || !messages.empty(); });
    if (comm->aborted) break;
    if (messages.front().size() != move.bytes) note("a receive of another length than its send");
    std::memcpy(move.out, messages.front().data(), std::min(move.bytes, messages.front().size()));
    messages.pop_front();
  }
  --comm->queued;
  changed.notify_all();
}

void queue_moves(ncclComm_t comm, cudaStream_t stream, std::vector<Move> moves) {
  ++comm->queued;
  stream->add([comm, moves = std::move(moves)] { run_moves(comm, moves); });
}

ncclResult_t move_or_collect(ncclComm_t comm, cudaStream_t stream, const std::vector<Move>& moves, const char* call) {
  const std::lock_guard lock(mutex);
  if (open_group.depth == 0) {
    enter(comm, call);
    const ncclResult_t result = answer(comm, call);
    if (result == ncclSuccess || result == ncclInProgress) queue_moves(comm, stream, moves);
    return result;
  }
  if (open_group.moves.empty()) enter(comm, call);
  if (fails(comm->calls, comm->rank, call)) return comm->result = failure.result;
  const std::pair key(comm, stream);
  if (open_group.moves.empty() || open_group.moves.back().first != key) open_group.moves.push_back({key, {}});
  auto& collected = open_group.moves.back().second;
  collected.insert(collected.end(), moves.begin(), moves.end());
  return ncclSuccess;
}

// Ends the communicators' work. Waits, as NCCL does, until it is over.
void abort_all(std::unique_lock<std::mutex>& lock, const std::vector<ncclComm_t>& comms) {
  for (ncclComm_t const comm : comms) {
    if (comm->aborted) note("a second abort");
    comm->aborted = true;
  }
  changed.notify_all();
  for (ncclComm_t const comm : comms) {
    if (!changed.wait_for(lock, longest_abort, [&] { return comm->queued == 0; })) note("an abort without end");
    --num_live;
  }
}

std::string text_of(const ncclUniqueId& id) { return {id.internal, sizeof id.internal}; }

}  // namespace

namespace nccl_stand_in {

void begin(uint64_t seed, const Failure& next_failure) {
  const std::lock_guard lock(mutex);
  random_numbers.seed(seed);
  failure = next_failure;
  wrong_uses.clear();
  rooms.clear();
  num_live = 0;
}
std::vector<std::string> faults() {
  const std::lock_guard lock(mutex);
  return wrong_uses;
}
int num_communicators() {
  const std::lock_guard lock(mutex);
  return num_live;
}
int most_blocks() {
  const std::lock_guard lock(mutex);
  return last_most_blocks;
}

}  // namespace nccl_stand_in

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSystemError ? "a system error" : "an error";
}
const char* ncclGetLastError(ncclComm_t) { return "told by the stand-in"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex);
  static uint64_t last = 0;
  *id = {};
  ++last;
  std::memcpy(id->internal, &last, sizeof last);
  return failure.call == "ncclGetUniqueId" ? failure.result : ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const std::lock_guard lock(mutex);
  if (config->blocking != 0) note("a communicator that blocks");
  last_most_blocks = config->maxCTAs;
  std::shared_ptr<Room>& room = rooms[text_of(id)];
  if (!room) room = std::make_shared<Room>();
  room->size = size;
  auto* const made = new ncclComm;
  made->rank = rank;
  made->room = room;
  made->thread = std::this_thread::get_id();
  const ncclResult_t result = answer(made, "ncclCommInitRankConfig");
  if (result != ncclSuccess && result != ncclInProgress) {
    delete made;  // a call that fails makes no communicator
    return result;
  }
  room->ranks.insert(rank);
  ++num_live;
  *comm = made;
  made->in_progress = true;  // until all ranks have come
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const std::lock_guard lock(mutex);
  if (comm->aborted) note("ncclCommGetAsyncError after an abort");
  if (fails(comm->calls, comm->rank, "ncclCommGetAsyncError")) {
    comm->result = failure.result;
    comm->in_progress = false;
    if (!failure.later) return failure.result;
  }
  if (comm->in_progress) {
    const bool waits = comm->never || !has_joined(*comm->room) || (comm->finalizing && comm->queued > 0);
    if (comm->answers_left > 0) {
      --comm->answers_left;
    } else if (!waits) {
      comm->in_progress = false;
    }
  }
  *result = comm->in_progress ? ncclInProgress : comm->result;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  enter(comm, "ncclCommFinalize");
  comm->finalizing = true;
  const ncclResult_t result = answer(comm, "ncclCommFinalize");
  if (result != ncclSuccess || comm->queued == 0) return result;
  comm->in_progress = true;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  enter(comm, "ncclCommDestroy");
  if (!comm->finalizing) note("ncclCommDestroy without ncclCommFinalize");
  --num_live;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  std::unique_lock lock(mutex);
  if (open_group.depth > 0) {
    open_group.aborts.push_back(comm);
    return ncclSuccess;
  }
  abort_all(lock, {comm});
  lock.unlock();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++open_group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  std::unique_lock lock(mutex);
  if (open_group.depth == 0) note("ncclGroupEnd without ncclGroupStart");
  if (--open_group.depth > 0) return ncclSuccess;
  const OpenGroup group = std::exchange(open_group, {});
  ncclResult_t result = ncclSuccess;
  for (const auto& [key, moves] : group.moves) {
    if (key.first->result != ncclSuccess) return key.first->result;
    const ncclResult_t answered = answer(key.first, "ncclGroupEnd");
    if (answered == ncclSuccess || answered == ncclInProgress) queue_moves(key.first, key.second, moves);
    if (answered != ncclSuccess) result = answered;
  }
  abort_all(lock, group.aborts);
  lock.unlock();
  for (ncclComm_t const comm : group.aborts) delete comm;
  return result;
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
  return move_or_collect(comm, stream, {{in, nullptr, count, peer}}, "ncclSend");
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
  return move_or_collect(comm, stream, {{nullptr, out, count, peer}}, "ncclRecv");
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t, ncclComm_t comm,
                           cudaStream_t stream) {
  std::vector<Move> moves;
  for (int peer = 0; peer < comm->room->size; ++peer) {
    moves.push_back({in, nullptr, count, peer});
    moves.push_back({nullptr, static_cast<std::byte*>(out) + static_cast<size_t>(peer) * count, count, peer});
  }
  return move_or_collect(comm, stream, moves, "ncclAllGather");
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  std::vector<Move> moves;
  if (comm->rank != root) moves.push_back({nullptr, out, count, root});
  for (int peer = 0; comm->rank == root && peer < comm->room->size; ++peer)
    if (peer != root) moves.push_back({in, nullptr, count, peer});
  return move_or_collect(comm, stream, moves, "ncclBroadcast");
}
