// Groups over MPI. Only its point-to-point messages are used. The collectives are those of comm/exchange.h, which sum
// in rank order and avoid MPI's temporary buffers, whose page faults are slow. Waiting is done here as well, so that
// ranks that share a core yield to each other.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mpi.h>
#include <sched.h>
#include <thread>
#include <unistd.h>

#include "base/error.h"
#include "comm/links.h"
#include "comm/process_world.h"

namespace gptrain::inline comm {
namespace {

constexpr int header_tag = 1;
constexpr int payload_tag = 2;
constexpr int64_t max_payload_bytes = 1 << 30;  // longer messages are split: MPI lengths are ints
constexpr int num_spins = 200;                  // polls before the core is yielded; about ten microseconds

std::string text_of(int status) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  return text;
}

void check_mpi(int status, const char* call) {
  if (status != MPI_SUCCESS) throw Error(ExitCode::device, "{}: {}", call, text_of(status));
}

// MPI in this process: started once, finalized when the last group is gone.
class Session {
 public:
  explicit Session(bool yielding) : yielding_(yielding) {
    // MPI itself waits while it starts and finalizes.
    if (yielding) setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    int provided = MPI_THREAD_SINGLE;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_MULTIPLE)
      throw Error(ExitCode::machine, "this MPI cannot be called from several threads (MPI_THREAD_MULTIPLE)");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  ~Session() {
    // MPI_Finalize needs all ranks. After a failure the launcher cleans up.
    if (finished) MPI_Finalize();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool finished = false;  // set on every rank

  // Called while nothing arrives, after `idle` polls in vain.
  void pause(int idle) const {
    if (yielding_ || idle >= num_spins) sched_yield();
  }

 private:
  bool yielding_;
};

struct MpiHeader {
  Call call;
  int64_t bytes = 0;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(std::shared_ptr<const Session> session, MPI_Comm comm) : session_(std::move(session)), comm_(comm) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void exchange(std::span<const Message> messages) override {
    requests_.clear();
    headers_.resize(messages.size());
    // The headers come first in the list, at their messages' indices, so that a completed one is easily identified.
    for (size_t i = 0; i < messages.size(); ++i) start_header(messages[i], headers_[i]);
    for (const Message& message : messages) start_payload(message);
    completed_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int idle = 0;
    for (int left = static_cast<int>(requests_.size()); left > 0;) {
      if (given_up_) throw PeerGone("this rank has given the group up");
      int count = 0;
      const int status = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, completed_.data(),
                                      statuses_.data());
      if (count == MPI_UNDEFINED) break;
      take_completed(messages, count);
      if (status == MPI_ERR_IN_STATUS) {
        for (int i = 0; i < count; ++i)
          if (statuses_[i].MPI_ERROR != MPI_ERR_PENDING) check_mpi(statuses_[i].MPI_ERROR, "MPI_Testsome");
      } else {
        check_mpi(status, "MPI_Testsome");
      }
      left -= count;
      idle = count > 0 ? 0 : idle + 1;
      if (idle > num_spins && patient_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      } else if (idle > 0) {
        session_->pause(idle);
      }
    }
  }

  void be_patient() override { patient_ = true; }
  void abort() override { given_up_ = true; }

 private:
  void start_header(const Message& message, MpiHeader& header) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (message.sending) {
      header = {message.call, message.bytes};
      check_mpi(MPI_Isend(&header, sizeof header, MPI_BYTE, message.peer, header_tag, comm_, &request), "MPI_Isend");
    } else {
      check_mpi(MPI_Irecv(&header, sizeof header, MPI_BYTE, message.peer, header_tag, comm_, &request), "MPI_Irecv");
    }
    requests_.push_back(request);
  }

  void start_payload(const Message& message) {
    for (int64_t start = 0; start < message.bytes; start += max_payload_bytes) {
      const int length = static_cast<int>(std::min(max_payload_bytes, message.bytes - start));
      MPI_Request request = MPI_REQUEST_NULL;
      if (message.sending) {
        check_mpi(MPI_Isend(static_cast<const std::byte*>(message.in) + start, length, MPI_BYTE, message.peer,
                            payload_tag, comm_, &request),
                  "MPI_Isend");
      } else {
        check_mpi(MPI_Irecv(static_cast<std::byte*>(message.out) + start, length, MPI_BYTE, message.peer, payload_tag,
                            comm_, &request),
                  "MPI_Irecv");
      }
      requests_.push_back(request);
    }
  }

  // Checks each header, so that a peer's different call is found before its payload, which may never come, is awaited.
  void take_completed(std::span<const Message> messages, int count) {
    for (int i = 0; i < count; ++i) {
      const auto index = static_cast<size_t>(completed_[i]);
      if (index < messages.size() && !messages[index].sending)
        check_arrival(headers_[index].call, headers_[index].bytes, messages[index], rank_);
    }
  }

  std::shared_ptr<const Session> session_;
  MPI_Comm comm_;  // freed by MPI_Finalize
  int rank_ = 0;
  int size_ = 1;
  std::vector<MpiHeader> headers_;     // headers of the current exchange's messages
  std::vector<MPI_Request> requests_;  // requests of the headers, then of the payloads
  std::vector<int> completed_;
  std::vector<MPI_Status> statuses_;
  bool patient_ = false;
  std::atomic<bool> given_up_ = false;
};

class MpiWorldLinks final : public MpiLinks {
 public:
  explicit MpiWorldLinks(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  std::string share(const std::string& text) override {
    int length = static_cast<int>(text.size());
    check_mpi(MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD), "MPI_Bcast");
    std::string shared = text;
    shared.resize(length);
    check_mpi(MPI_Bcast(shared.data(), length, MPI_CHAR, 0, MPI_COMM_WORLD), "MPI_Bcast");
    return shared;
  }

  std::unique_ptr<Transport> connect(const std::vector<int>& ranks, int rank_in_group, int index) override {
    MPI_Group world = MPI_GROUP_NULL;
    MPI_Group group = MPI_GROUP_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
    check_mpi(MPI_Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &group), "MPI_Group_incl");
    check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, group, index, &comm), "MPI_Comm_create_group");
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    auto transport = std::make_unique<MpiTransport>(session_, comm);
    if (transport->rank() != rank_in_group)
      throw Error(ExitCode::device, "MPI numbers the ranks of a group in another order");
    return transport;
  }

  void drop(const std::vector<int>&) override {}  // the launcher ends all
  void close(bool finished) override { session_->finished = finished; }

  void end_process(bool reporter) override {
    // The launcher prints a message for every process that aborts: the others give the reporter time to abort first.
    if (!reporter) std::this_thread::sleep_for(std::chrono::seconds(2));
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::device));
    _exit(static_cast<int>(ExitCode::device));
  }

 private:
  std::shared_ptr<Session> session_;
};

}  // namespace

bool built_with_mpi() { return true; }

std::unique_ptr<MpiLinks> start_mpi(const Launch& launch, bool yielding) {
  auto session = std::make_shared<Session>(yielding);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank != launch.rank || size != launch.size)
    throw Error(ExitCode::usage,
                "{}, but MPI says rank {} of {}: start the ranks with the mpirun of the Open MPI that "
                "gptrain was built with, or with srun --mpi=pmix",
                describe(launch), rank, size);
  return std::make_unique<MpiWorldLinks>(std::move(session));
}

}  // namespace gptrain::comm
