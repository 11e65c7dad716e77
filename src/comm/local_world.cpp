// World whose ranks are threads of one process. The first rank that asks for a group creates it for all.
#include <algorithm>
#include <deque>
#include <exception>
#include <fmt/format.h>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <unistd.h>

#include "base/thread.h"
#include "comm/world.h"

namespace gptrain::inline comm {
namespace {

// State shared by the ranks of a world.
class LocalWorldState {
 public:
  explicit LocalWorldState(int size) : num_made_(size), left_(size) {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    host_ = name;
  }

  const std::string& host() const { return host_; }
  int size() const { return static_cast<int>(left_.size()); }

  // Returns the handle of `rank` in its next group.
  std::unique_ptr<Communicator> make(int rank, const std::vector<int>& ranks) {
    check_group(ranks, size());
    const std::lock_guard lock(mutex_);
    const size_t index = num_made_[rank];
    if (index == groups_.size()) groups_.push_back(first_to_ask(rank, ranks));
    Group& group = groups_[index];
    if (group.ranks != ranks)
      throw Error(ExitCode::device, "the ranks disagree on group {}: rank {} makes it of {}, rank {} of {}", index,
                  group.first_to_ask, list_ranks(group.ranks), rank, list_ranks(ranks));
    ++num_made_[rank];
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    if (found == ranks.end()) return nullptr;
    return std::move(group.handles[found - ranks.begin()]);
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    left_[rank] = true;
    for (size_t index = num_made_[rank]; index < groups_.size(); ++index) drop_handle(groups_[index], rank);
  }

 private:
  struct Group {
    std::vector<int> ranks;
    std::vector<std::unique_ptr<Communicator>> handles;  // unclaimed handles; null once claimed
    int first_to_ask;
  };

  Group first_to_ask(int rank, const std::vector<int>& ranks) {
    Group group{ranks, make_local_group(static_cast<int>(ranks.size()), size()), rank};
    for (const int member : ranks)
      if (left_[member]) drop_handle(group, member);
    return group;
  }

  // Tells the peers that `rank` will not claim its handle.
  static void drop_handle(Group& group, int rank) {
    const auto found = std::find(group.ranks.begin(), group.ranks.end(), rank);
    if (found != group.ranks.end()) group.handles[found - group.ranks.begin()].reset();
  }

  std::string host_;
  std::mutex mutex_;  // guards all that follows
  std::vector<size_t> num_made_;
  std::vector<bool> left_;
  std::deque<Group> groups_;
};

class LocalWorld final : public World {
 public:
  LocalWorld(std::shared_ptr<LocalWorldState> state, int rank) : state_(std::move(state)), rank_(rank) {}
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;
  ~LocalWorld() override { state_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return state_->size(); }
  bool of_processes() const override { return false; }
  const std::string& host(int) const override { return state_->host(); }
  // `use` is ignored: threads reduce in place.
  std::unique_ptr<Communicator> make_group(const std::vector<int>& ranks, const GroupUse&) override {
    return state_->make(rank_, ranks);
  }

 private:
  std::shared_ptr<LocalWorldState> state_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<World>> make_local_world(int size) {
  if (size < 1) throw Error(ExitCode::device, "a world needs at least one rank, not {}", size);
  const auto state = std::make_shared<LocalWorldState>(size);
  std::vector<std::unique_ptr<World>> worlds;
  for (int rank = 0; rank < size; ++rank) worlds.push_back(std::make_unique<LocalWorld>(state, rank));
  return worlds;
}

void run_local_ranks(int size, const std::function<void(World&)>& body) {
  std::mutex mutex;
  std::exception_ptr cause;
  bool cause_is_silent = false;
  std::exception_ptr consequence;
  // Holds all ranks back until all threads exist: a rank would wait for ever for one that could not be started.
  std::promise<bool> all_there;
  const std::shared_future<bool> begin = all_there.get_future().share();
  std::vector<std::thread> threads;
  const auto run_rank = [&, begin](std::unique_ptr<World> world) {
    if (!begin.get()) return;
    try {
      body(*world);
    } catch (const PeerGone&) {
      const std::lock_guard lock(mutex);
      consequence = std::current_exception();
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      if (!cause || cause_is_silent) {
        cause = std::current_exception();
        cause_is_silent = *error.what() == '\0';
      }
    }
    world.reset();
  };
  try {
    for (std::unique_ptr<World>& world : make_local_world(size)) {
      threads.push_back(start_thread(fmt::format("is rank {} of {}", threads.size(), size),
                                     [&run_rank, world = std::move(world)]() mutable { run_rank(std::move(world)); }));
    }
  } catch (const Error&) {
    cause = std::current_exception();
  }
  all_there.set_value(!cause);
  for (std::thread& thread : threads) thread.join();
  if (cause) std::rethrow_exception(cause);
  if (consequence) std::rethrow_exception(consequence);
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string list;
  for (const int rank : ranks) {
    if (!list.empty()) list += ',';
    list += std::to_string(rank);
  }
  return list;
}

void check_group(const std::vector<int>& ranks, int world_size) {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  if (sorted.empty() || sorted.front() < 0 || sorted.back() >= world_size || twice)
    throw Error(ExitCode::device, "a group must hold ranks of 0 to {}, each once, not {{{}}}", world_size - 1,
                list_ranks(ranks));
}

}  // namespace gptrain::comm
