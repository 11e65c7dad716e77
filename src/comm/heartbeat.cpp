#include "comm/heartbeat.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <fmt/format.h>
#include <optional>
#include <poll.h>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/json.h"
#include "base/output.h"
#include "base/thread.h"
#include "base/units.h"
#include "comm/frames.h"

namespace gptrain::inline comm {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;

constexpr auto longest_interval = 250ms;  // between two beats
constexpr auto gathering_time = 200ms;    // time from a loss to its report, as ranks of one node are lost together
constexpr auto farewell_time = 1s;        // time for a run that fails on all ranks to end by itself
constexpr auto send_time = 200ms;         // limit for one small frame

enum class Condition : uint8_t { alive, finished, failed, closed, silent };

// A rank as the others know it.
struct Member {
  Condition condition = Condition::alive;
  Clock::time_point heard;    // time of its last message
  Clock::time_point changed;  // time when it stopped being alive
  std::string doing = "before it reported anything";
};

std::string describe_state(const Activity::State& state) {
  std::string text = "at the start";
  if (!state.group.empty()) {
    const int64_t bytes = state.call.count * dtype_bytes(state.call.dtype);
    text = fmt::format("{} {}, {}, of {}", state.in_progress ? "in" : "after", describe(state.call),
                       format_bytes(static_cast<double>(bytes)), state.group);
  }
  if (state.step >= 0) text += fmt::format("; step {}", state.step);
  if (!state.phase.empty()) text += fmt::format("; {}", state.phase);
  if (state.stage >= 0) text += fmt::format("; stage {}", state.stage);
  if (state.stage >= 0 && state.micro_batch >= 0) text += fmt::format(", micro-batch {}", state.micro_batch);
  return text;
}

bool lost(const Member& member) { return member.condition >= Condition::failed; }

}  // namespace

class Heartbeat::Watch {
 public:
  Watch(Rendezvous rendezvous, int rank, int needed, const Timeout& timeout, std::shared_ptr<Activity> activity,
        Policy policy)
      : rendezvous_(std::move(rendezvous)),
        rank_(rank),
        needed_(needed),
        timeout_text_(describe(timeout)),
        timeout_(seconds_duration(timeout.seconds)),
        interval_(std::min<Clock::duration>(longest_interval, timeout_ / 4)),
        activity_(std::move(activity)),
        policy_(std::move(policy)),
        members_(rendezvous_.peers.size()),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    for (Member& member : members_) member.heard = Clock::now();
    thread_ = start_thread("watches other ranks", [this] { run(); });
  }

  void leave(bool finished) {
    farewell_ = finished ? Condition::finished : Condition::failed;
    leaving_ = true;
    const uint64_t one = 1;
    if (write(wake_.descriptor(), &one, sizeof one) != sizeof one) return;
    if (thread_.joinable()) thread_.join();
  }

  ~Watch() {
    if (thread_.joinable()) leave(false);
    if (thread_.joinable()) thread_.join();
  }

 private:
  bool leading() const { return rank_ == leader_; }

  void run() {
    // Blocks all signals in this thread: other threads handle them.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    auto next_beat = Clock::now();
    auto last_look = Clock::now();
    while (!leaving_) {
      if (Clock::now() >= next_beat) {
        beat("beat");
        next_beat = Clock::now() + interval_;
        // Empties the listener's queue of strangers, which would fill it when other ranks need it after a loss of rank
        // 0.
        rendezvous_.heartbeat_listener.serve();
      }
      const bool somebody_lost = std::any_of(members_.begin(), members_.end(), lost);
      const auto next_look = somebody_lost ? Clock::now() + gathering_time / 4 : next_silence();
      wait_until(std::min(next_beat, next_look));
      const auto now = Clock::now();
      const bool was_stopped = now - last_look > interval_ + timeout_ / 2;
      // While this process was stopped it could not hear the others: restarts their timers.
      if (was_stopped)
        for (Member& member : members_) member.heard = now;
      last_look = now;
      listen();
      if (leading()) {
        look_at_members(was_stopped);
      } else {
        look_at_leader(was_stopped);
      }
    }
    beat(farewell_ == Condition::finished ? "finished" : "failed");
  }

  // Time when the rank that has been silent for longest reaches the timeout.
  Clock::time_point next_silence() const {
    auto earliest = Clock::time_point::max();
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      const bool watched = leading() ? rank != index(rank_) : rank == index(leader_);
      if (watched && members_[rank].condition == Condition::alive)
        earliest = std::min(earliest, members_[rank].heard + timeout_);
    }
    return earliest;
  }

  // Sleeps until a frame arrives, this rank leaves, or `time`.
  void wait_until(Clock::time_point time) {
    std::vector<pollfd> waiting{{wake_.descriptor(), POLLIN, 0}};
    for (const FrameChannel& channel : rendezvous_.channels)
      if (channel.open()) waiting.push_back({channel.socket().descriptor(), POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
    poll(waiting.data(), waiting.size(), static_cast<int>(std::max<int64_t>(left, 0)));
  }

  void beat(const char* kind) {
    const std::string frame = json_text(
        Json{{"kind", kind}, {"doing", describe_state(activity_->state())}, {"stop", activity_->stop_asked()}});
    for (FrameChannel& channel : rendezvous_.channels)
      if (channel.open()) channel.send(frame, Clock::now() + send_time);
  }

  void listen() {
    for (size_t i = 0; i < rendezvous_.channels.size(); ++i) {
      FrameChannel& channel = rendezvous_.channels[i];
      Member& member = members_[leading() ? i : index(leader_)];  // another rank's only channel leads to the leader
      if (channel.open()) channel.read_available();
      while (const auto frame = channel.next_frame()) take(*frame, member);
      if (!channel.open() && (!leading() || i != index(rank_))) set_condition(member, Condition::closed);
    }
  }

  void take(const std::string& frame, Member& member) {
    const Json message = parse_json_or_discard(frame);
    const std::string kind = text_member(message, "kind");
    member.heard = Clock::now();
    if (kind == "beat") member.doing = text_member(message, "doing");
    if (kind == "beat" && message.contains("stop") && message["stop"] == true) activity_->ask_to_stop();
    if (kind == "finished") set_condition(member, Condition::finished);
    if (kind == "failed") set_condition(member, Condition::failed);
    if (kind == "end") policy_.end(false);
    if (kind == "lost" && policy_.go_on) go_on_without(numbers_member(message, "ranks"));
  }

  static void set_condition(Member& member, Condition condition) {
    if (member.condition != Condition::alive) return;
    member.condition = condition;
    member.changed = Clock::now();
  }

  void note_silence(Member& member) const {
    if (Clock::now() - member.heard >= timeout_) set_condition(member, Condition::silent);
  }

  // On the leader, rank 0 at first: reports lost ranks, after a delay in which further losses show.
  void look_at_members(bool was_stopped) {
    bool due = false;
    size_t num_closed = 0;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      if (rank == index(rank_)) continue;
      note_silence(members_[rank]);
      if (rank >= needed_) {
        if (lost(members_[rank])) let_go(rank);
        continue;
      }
      if (lost(members_[rank])) due = due || Clock::now() - members_[rank].changed >= patience(members_[rank]);
      if (members_[rank].condition == Condition::closed) ++num_closed;
    }
    if (was_stopped && num_closed > 0) end_after_stop();
    if (due) report_loss();
  }

  void let_go(size_t rank) {
    print_err("warning: rank {} ({}), which idles, {}: the run goes on without it\n", rank,
              rendezvous_.peers[rank].host, fate(members_[rank]));
    members_[rank].condition = Condition::finished;
    rendezvous_.channels[rank] = FrameChannel(Socket());
  }

  static Clock::duration patience(const Member& member) {
    return member.condition == Condition::failed ? Clock::duration(farewell_time) : Clock::duration(gathering_time);
  }

  void look_at_leader(bool was_stopped) {
    Member& leader = members_[index(leader_)];
    note_silence(leader);
    const bool left = leader.condition == Condition::failed && Clock::now() - leader.changed >= farewell_time;
    if (left && !policy_.go_on) policy_.end(false);
    if (was_stopped && leader.condition == Condition::closed) end_after_stop();
    if (left || leader.condition == Condition::closed || leader.condition == Condition::silent) succeed();
  }

  // On other ranks, when the leader is lost: turns to the lowest rank that answers, or takes over if there is none.
  void succeed() {
    for (int candidate = leader_ + 1; candidate < rank_; ++candidate) {
      if (members_[index(candidate)].condition == Condition::finished) continue;
      const auto patience = Clock::now() + 3 * interval_ + farewell_time;
      PeerCall call = call_peer(rendezvous_.peers[index(candidate)], candidate, self(), PeerPort::heartbeat,
                                rendezvous_.key, takeover_greeting(), {Clock::now() + gathering_time, patience});
      // The candidate reports and ends the run once it has heard from all it can; a stopped candidate does not.
      const auto answer = call.end == CallEnd::proven ? call.channel.receive(patience) : std::nullopt;
      if (answer && policy_.go_on) return follow(candidate, std::move(call.channel), *answer);
      if (answer || call.end == CallEnd::closed || (call.end == CallEnd::proven && !call.channel.open()))
        policy_.end(false);
    }
    // Other ranks may have received a last beat of the leader that this rank missed.
    auto deadline = Clock::now() + gathering_time;
    if (members_[index(leader_)].condition == Condition::silent) deadline += interval_;
    size_t num_missing = 0;  // ranks that may still turn to this rank
    std::vector<FrameChannel> followers;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      followers.emplace_back(Socket());
      if (rank == index(rank_) || members_[rank].condition == Condition::finished) continue;
      set_condition(members_[rank], Condition::closed);
      num_missing += static_cast<int>(rank) > rank_ ? 1 : 0;
    }
    while (num_missing > 0) {
      auto admitted = rendezvous_.heartbeat_listener.admit(deadline);
      if (!admitted) break;
      const auto number =
          number_member(parse_json_or_discard(admitted->text), "rank", 0, static_cast<int64_t>(members_.size()) - 1);
      if (!number) continue;
      const auto rank = static_cast<size_t>(*number);
      if (members_[rank].condition == Condition::finished) continue;
      num_missing -= members_[rank].condition == Condition::alive || static_cast<int>(rank) < rank_ ? 0 : 1;
      members_[rank].condition = Condition::alive;
      members_[rank].heard = Clock::now();
      followers[rank] = std::move(admitted->channel);
    }
    rendezvous_.channels = std::move(followers);
    leader_ = rank_;
    report_loss();
  }

  // Has another rank as leader from now on, which has answered with the list of lost ranks.
  void follow(int leader, FrameChannel channel, const std::string& answer) {
    leader_ = leader;
    rendezvous_.channels.clear();
    rendezvous_.channels.push_back(std::move(channel));
    members_[index(leader)].condition = Condition::alive;
    take(answer, members_[index(leader)]);
  }

  static size_t index(int rank) { return static_cast<size_t>(rank); }
  const Peer& self() const { return rendezvous_.peers[index(rank_)]; }

  std::string takeover_greeting() const { return json_text(Json{{"kind", "takeover"}, {"rank", rank_}}); }

  // On the leader: reports the lost ranks, tells the others, and does as the policy says.
  void report_loss() {
    Lines report;
    std::vector<int> ranks;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      const Member& member = members_[rank];
      if (rank == index(rank_) || !lost(member)) continue;
      ranks.push_back(static_cast<int>(rank));
      report +=
          Lines("  rank {} ({}) {}; last seen {}\n", rank, rendezvous_.peers[rank].host, fate(member), member.doing);
    }
    print_err("gptrain: {} of {} ranks lost; rank {} ({}) {}\n{}", ranks.size(), members_.size(), rank_, self().host,
              policy_.go_on ? "goes on without them" : "ends the run, nothing more is saved", report);
    std::fflush(stderr);
    const Json notice = policy_.go_on ? Json{{"kind", "lost"}, {"ranks", ranks}} : Json{{"kind", "end"}};
    for (FrameChannel& channel : rendezvous_.channels)
      if (channel.open()) channel.send(json_text(notice), Clock::now() + send_time);
    if (!policy_.go_on) policy_.end(true);
    for (const int rank : ranks) rendezvous_.channels[index(rank)] = FrameChannel(Socket());
    go_on_without(ranks);
  }

  // Goes on with the ranks that are not lost. The leader's list is final: a rank that is on it ends.
  void go_on_without(const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      if (rank == rank_) end_after_stop();
      members_[index(rank)].condition = Condition::finished;
    }
    policy_.go_on(ranks);
  }

  // Returns a list of ranks in a message; a list with any other number counts as empty.
  std::vector<int> numbers_member(const Json& message, const char* name) const {
    std::vector<int> ranks;
    if (!message.contains(name) || !message[name].is_array()) return ranks;
    for (const Json& number : message[name]) {
      if (!number.is_number_integer() || number < 0 || number >= members_.size()) return {};
      ranks.push_back(number);
    }
    return ranks;
  }

  std::string fate(const Member& member) const {
    if (member.condition == Condition::failed) return "ended with an error of its own";
    if (member.condition == Condition::closed) return "is gone";
    return "is silent for more than " + timeout_text_;
  }

  void end_after_stop() {
    print_err("gptrain: rank {} ({}) was suspended for too long, and the others have {} without it\n", rank_,
              self().host, policy_.go_on ? "gone on" : "ended");
    policy_.end(false);
  }

  Rendezvous rendezvous_;
  int rank_;
  int leader_ = 0;  // rank that hears all others; the channels of the rest lead to it
  size_t needed_;
  std::string timeout_text_;
  Clock::duration timeout_;
  Clock::duration interval_;
  std::shared_ptr<Activity> activity_;
  Policy policy_;
  std::vector<Member> members_;
  Socket wake_;  // becomes readable when this rank leaves
  std::atomic<bool> leaving_ = false;
  Condition farewell_ = Condition::failed;
  std::thread thread_;
};

Heartbeat::Heartbeat(Rendezvous rendezvous, int rank, int needed, const Timeout& timeout,
                     std::shared_ptr<Activity> activity, Policy policy)
    : watch_(std::make_unique<Watch>(std::move(rendezvous), rank, needed, timeout, std::move(activity),
                                     std::move(policy))) {}

Heartbeat::~Heartbeat() = default;

void Heartbeat::leave(bool finished) { watch_->leave(finished); }

}  // namespace gptrain::comm
