#include "comm/process_world.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/output.h"
#include "base/thread.h"
#include "comm/exchange.h"
#include "comm/heartbeat.h"
#include "comm/links.h"

namespace gptrain::inline comm {
namespace {

using Json = nlohmann::json;

std::string name_of(const std::vector<int>& ranks) {
  constexpr size_t max_listed = 8;
  if (ranks.size() <= max_listed) return "ranks " + list_ranks(ranks);
  return fmt::format("{} ranks from {} to {}", ranks.size(), ranks.front(), ranks.back());
}

// Limits waits inside MPI, which has no timeout, while no heartbeat watches the processes. If the timeout passes while
// the object lives, prints a message and ends this process; higher ranks end a little later, as the launcher ends them
// with the first. `doing` completes "waits for others to ...".
class Limit {
 public:
  Limit(const Launch& launch, const Timeout& timeout, const char* doing, const Refusal& refusal = {})
      : thread_(start_thread("limits a wait",
                             [this, launch, timeout, doing, refusal] { run(launch, timeout, doing, refusal); })) {}
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;
  ~Limit() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void run(const Launch& launch, const Timeout& timeout, const char* doing, const Refusal& refusal) {
    const auto grace = std::chrono::seconds(3 * std::min(launch.rank, 2));
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, seconds_duration(timeout.seconds) + grace, [this] { return done_; })) return;
    if (!refusal.message.empty()) print_err("gptrain: {}\n", refusal.message);
    print_err(
        "gptrain: {} on {} waits for others to {}, and not all did so within {}: see which of the "
        "processes hangs or was never started\n",
        describe(launch), launch.host, doing, describe(timeout));
    std::fflush(stderr);
    _exit(static_cast<int>(refusal.code));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;  // last member: starts when the others exist
};

class ProcessWorld final : public World {
 public:
  // The loss of one of the first `needed` processes ends the run.
  ProcessWorld(const Launch& launch, Rendezvous rendezvous, std::unique_ptr<Links> links, const WorldOptions& options,
               int needed)
      : launch_(launch),
        timeout_(options.timeout),
        rank_(launch.rank),
        size_(options.ranks > 0 ? options.ranks : launch.size),
        links_(std::move(links)) {
    for (const Peer& peer : rendezvous.peers) hosts_.push_back(peer.host);
    Heartbeat::Policy policy{.end = [links = links_.get()](bool reporter) { links->end_process(reporter); }};
    if (options.on_loss)
      policy.go_on = [this, on_loss = options.on_loss](const std::vector<int>& lost) {
        note_lost(lost);
        links_->drop(lost);
        on_loss(lost);
      };
    heartbeat_ = std::make_unique<Heartbeat>(std::move(rendezvous), rank_, needed, timeout_, activity_, policy);
    all_ = connect(remaining_ranks(), {.reduces = false});
  }
  ProcessWorld(const ProcessWorld&) = delete;
  ProcessWorld& operator=(const ProcessWorld&) = delete;

  ~ProcessWorld() override {
    bool finished = std::uncaught_exceptions() == exceptions_at_start_;
    try {
      if (finished) end();
    } catch (const Error&) {
      finished = false;
    }
    all_.reset();
    heartbeat_->leave(finished);
    links_->close(finished);
    try {
      const Limit limit(launch_, timeout_, "end");
      links_.reset();
    } catch (const Error&) {
      // Without a thread for the limit, the end has no timeout.
    }
  }

  void end() override {
    if (!all_ || has_ended_) return;
    has_ended_ = true;
    try {
      const std::vector<int> remaining = remaining_ranks();
      if (std::ssize(remaining) < size_) all_ = connect(remaining, {.reduces = false});
      all_->barrier();
    } catch (const Error& error) {
      throw Error(error.code(), "at the end, where all ranks wait for each other: {}", error.what());
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool of_processes() const override { return true; }
  const std::string& host(int rank) const override { return hosts_[rank]; }

  std::unique_ptr<Communicator> make_group(const std::vector<int>& ranks, const GroupUse& use) override {
    check_group(ranks, launch_.size);
    return connect(ranks, use);
  }

 private:
  void note_lost(const std::vector<int>& lost) {
    const std::lock_guard lock(mutex_);
    lost_.insert(lost.begin(), lost.end());
  }

  std::vector<int> remaining_ranks() {
    const std::lock_guard lock(mutex_);
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank)
      if (!lost_.contains(rank)) ranks.push_back(rank);
    return ranks;
  }

  std::unique_ptr<Communicator> connect(const std::vector<int>& ranks, const GroupUse& use) {
    const int index = num_groups_++;
    const auto found = std::find(ranks.begin(), ranks.end(), rank_);
    if (found == ranks.end()) return nullptr;
    if (ranks.size() == 1) return std::move(make_local_group(1).front());
    auto scratch = use.scratch;
    if (use.reduces && scratch == nullptr) scratch = std::make_shared<ExchangeScratch>(static_cast<int>(ranks.size()));
    std::string name = name_of(ranks);
    if (!use.lane.empty()) name += fmt::format(" (lane {})", use.lane);
    auto transport = links_->connect(ranks, static_cast<int>(found - ranks.begin()), index);
    if (use.patient) transport->be_patient();
    return make_exchange_communicator(std::move(transport), activity_, std::move(name),
                                      use.reduces ? std::move(scratch) : nullptr);
  }

  const Launch launch_;
  const Timeout timeout_;
  int rank_;
  int size_;
  int exceptions_at_start_ = std::uncaught_exceptions();
  std::vector<std::string> hosts_;
  std::mutex mutex_;  // guards lost_
  std::set<int> lost_;
  std::unique_ptr<Links> links_;
  std::unique_ptr<Heartbeat> heartbeat_;
  std::unique_ptr<Communicator> all_;  // group of all ranks, for the end; null on processes that are not ranks
  int num_groups_ = 0;
  bool has_ended_ = false;
};

std::vector<Fact> all_facts(const WorldOptions& options) {
  std::vector<Fact> facts = build_facts();
  if (!options.same_instruction_set)
    std::erase_if(facts, [](const Fact& fact) { return fact.name == "instruction set"; });
  facts.insert(facts.end(), options.facts.begin(), options.facts.end());
  return facts;
}

// Refuses, before the ranks meet, a number of ranks for which this process may not open enough files.
void require_files(const Launch& launch) {
  constexpr int64_t sockets_of_peer = 2, other_files = 40;  // sockets of rank 0; the others have one for each peer
  const int64_t needed = sockets_of_peer * launch.size + other_files;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const auto allowed = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int32_t>::max()));
  if (needed <= allowed) return;
  throw Error(
      ExitCode::machine,
      "{} ranks over TCP take about {} open files in each process, and {} are allowed on {}: raise the hard limit "
      "(ulimit -Hn), or start fewer ranks, or ranks as threads (--ranks)",
      launch.size, needed, allowed, launch.host);
}

std::unique_ptr<World> world_of_one() { return std::move(make_local_world(1).front()); }

}  // namespace

std::unique_ptr<World> make_tcp_world(const Launch& launch, const WorldOptions& options) {
  if (launch.size == 1) return world_of_one();
  set_up_on_node(launch);
  require_files(launch);
  const ListenOptions listen_options{find_secret(), options.interface};
  Socket master = launch.rank == 0 ? listen_as_master(launch, listen_options) : Socket();
  if (launch.rank == 0 && !listen_options.secret.given()) {
    print_err(
        "warning: GPTRAIN_SECRET is not set: whoever reaches port {} of {} can join this run, or end it; give all "
        "ranks the same secret\n",
        port_of(master), launch.host);
  }
  Rendezvous rendezvous = join_rendezvous(launch, std::move(master), launch.master_addresses, all_facts(options),
                                          options.timeout, listen_options);
  auto links = make_tcp_links(rendezvous, launch.rank, options.timeout.seconds, options.on_loss != nullptr);
  const int needed = options.ranks > 0 ? options.ranks : launch.size;
  return std::make_unique<ProcessWorld>(launch, std::move(rendezvous), std::move(links), options, needed);
}

std::unique_ptr<World> make_mpi_world(const Launch& launch, const WorldOptions& options) {
  if (launch.size == 1) return world_of_one();
  if (!launch.mpi) throw Error(ExitCode::usage, "{} was not started by MPI", describe(launch));
  const bool yielding = !set_up_on_node(launch);
  std::optional<Limit> limit(std::in_place, launch, options.timeout, "start MPI", options.refusal);
  std::unique_ptr<MpiLinks> links = start_mpi(launch, yielding);
  // MPI tells where rank 0 listens: no fixed address or port is needed.
  Launch launch_of_master = launch;
  launch_of_master.master_port = 0;
  Socket master;
  std::string contact;
  launch_of_master.master_addresses.clear();
  ListenOptions listen_options{Secret(), options.interface};
  if (launch.rank == 0) {
    master = listen_as_master(launch_of_master, listen_options);
    std::vector<std::string> addresses = interface_addresses();
    addresses.push_back("127.0.0.1");
    // The secret goes over MPI, which only the ranks can read.
    contact = json_text(
        Json{{"addresses", addresses}, {"port", port_of(master)}, {"host", launch.host}, {"secret", draw_secret()}});
  }
  const Json shared = parse_json(links->share(contact));
  limit.reset();
  std::vector<std::string> addresses = shared.at("addresses");
  if (shared.at("host") == launch.host) std::rotate(addresses.rbegin(), addresses.rbegin() + 1, addresses.rend());
  launch_of_master.master_port = shared.at("port");
  listen_options.secret = Secret(shared.at("secret"));
  Rendezvous rendezvous = join_rendezvous(launch_of_master, std::move(master), addresses, all_facts(options),
                                          options.timeout, listen_options);
  WorldOptions ended_by_launcher = options;
  ended_by_launcher.on_loss = nullptr;
  return std::make_unique<ProcessWorld>(launch, std::move(rendezvous), std::move(links), ended_by_launcher,
                                        launch.size);
}

std::unique_ptr<World> make_process_world(const Launch& launch, const WorldOptions& options) {
  return uses_mpi(launch) ? make_mpi_world(launch, options) : make_tcp_world(launch, options);
}

bool uses_mpi(const Launch& launch) {
  return launch.mpi && (built_with_mpi() || launch.source == Launch::Source::open_mpi);
}

}  // namespace gptrain::comm
