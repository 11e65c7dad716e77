// Collectives over one group of ranks, on host memory, or (device_groups.h, staged.h) on the memory of its devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "comm/reduce_op.h"

namespace gptrain::inline comm {

// Thrown when a rank needs another that has left. The cause is the failure on that other rank.
class PeerGone : public Error {
 public:
  explicit PeerGone(const std::string& message) : Error(ExitCode::device, message) {}
};

// Elements [first, first + count) of a buffer that one peer sends or receives. count >= 0.
struct PeerPart {
  int64_t first = 0;
  int64_t count = 0;
};

// One rank's handle on one group. REQUIRES: every rank of the group calls the same operations in the same order with
// the same counts; a rank calls from one thread; buffers do not overlap unless `in` and `out` are said to be the same.
// The caller owns the buffers. Calls run in order; `synchronize` waits for them. Sums run in rank order, in f32 for
// bf16 and f16 (rounded once) and in the element type for others, so every rank gets the same bits, run after run. If a
// peer fails or disagrees on count or type, every rank of the group throws Error(device). Nothing is buffered: a send
// may wait for its receive, and a collective until all ranks have called it.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // data[i] = reduction of data[i] over ranks, in place.
  virtual void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) = 0;
  // out[0, count) = this rank's piece of the reduction of in[0, size * count) over ranks.
  virtual void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op) = 0;
  // out[r * count, (r + 1) * count) = `in` of rank r. `in` may be this rank's piece of `out`.
  virtual void all_gather(const void* in, void* out, int64_t count, DType dtype) = 0;
  // out[r * count ...] = in[rank * count ...] of rank r.
  virtual void all_to_all(const void* in, void* out, int64_t count, DType dtype) = 0;
  // out[received[r]] = in[sent[rank]] of rank r. There is one part per rank; the length that a rank sends must be the
  // length that the other receives. Parts may be empty and in any order; those of `out` do not overlap.
  virtual void all_to_all_v(const void* in, std::span<const PeerPart> sent, void* out,
                            std::span<const PeerPart> received, DType dtype) = 0;
  virtual void broadcast(void* data, int64_t count, DType dtype, int root) = 0;
  // A send returns once `data` may be reused, a receive once it is filled. Between group_start and group_end they are
  // only queued; group_end runs them together, so that ranks may exchange data in any order.
  virtual void send(const void* data, int64_t count, DType dtype, int peer) = 0;
  virtual void receive(void* data, int64_t count, DType dtype, int peer) = 0;
  virtual void group_start() = 0;
  virtual void group_end() = 0;
  virtual void barrier() = 0;
  virtual void synchronize() = 0;

  // Gives up the group on this rank. Any thread. A waiting call of this rank and all later ones throw Error(device),
  // and peers learn that the rank is gone. No effect if calls only queue work.
  virtual void abort() = 0;
};

// Returns a group whose ranks are threads of this process: element r is rank r's handle. size >= 1; a group of one only
// copies `in` to `out`. The group lives as long as any handle. A handle belongs to its thread: destroying it tells the
// peers that the rank is gone. A peer that still needs it throws PeerGone, or Error(device) if every rank waits.
// `num_threads`: number of ranks of the process, if the group has only some of them; 0: the group has all. A rank that
// waits sleeps, after it has spun for a moment if the process has a core for each of these ranks.
std::vector<std::unique_ptr<Communicator>> make_local_group(int size, int num_threads = 0);

}  // namespace gptrain::comm
