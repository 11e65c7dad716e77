// All ranks of a run, and the groups that they make among themselves.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/activity.h"
#include "comm/communicator.h"

namespace gptrain {

class ExchangeScratch;

// What a group is made for.
struct GroupUse {
  std::string lane = {};                               // whose messages these are, for reports; empty: no lane's
  std::shared_ptr<ExchangeScratch> scratch = nullptr;  // of comm/exchange.h, to share; null: the group's own
  bool reduces = true;                                 // false: it takes no scratch memory, and refuses reductions
  bool patient = false;  // its waits are long and nobody's step depends on them: they leave the core to others
};

// One rank's place among all ranks. A process may hold the worlds of several ranks, each used by its own thread.
class World {
 public:
  virtual ~World() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Whether ranks are processes, and not threads of one.
  virtual bool of_processes() const = 0;
  // The name of the node that `rank` runs on.
  virtual const std::string& host(int rank) const = 0;
  // What this rank is doing, for the report about it when it goes missing. Groups note their operations; the owner of
  // the world notes steps and phases.
  Activity& activity() { return *activity_; }

  // Makes the group of `ranks` (of the world, each once; the order of the list is the rank order inside the group) and
  // returns this rank's handle, or null if it is no member. Collective over the world: every rank, member or not, makes
  // the same groups in the same order, once at the start. Handles may outlive the world. Error(device): a list that is
  // no group, or that differs from what another rank gives for the same group. Groups of the same ranks are as apart
  // from each other as any: what one waits for is no other's.
  virtual std::unique_ptr<Communicator> make_group(const std::vector<int>& ranks, const GroupUse& use = {}) = 0;

 protected:
  const std::shared_ptr<Activity> activity_ = std::make_shared<Activity>();
};

// A world whose ranks are threads of this process: element r is rank r's. A world that is destroyed before its rank has
// made all groups counts as having left those that the others make.
std::vector<std::unique_ptr<World>> make_local_world(int size);

// Runs body on every rank of a local world, each in its own thread, and returns when all have ended. Throws what the
// first of them that failed by itself (with anything but PeerGone) has thrown; one with a message comes before one
// without, whose failure another rank tells of.
void run_local_ranks(int size, const std::function<void(World&)>& body);

std::string list_ranks(const std::vector<int>& ranks);  // "0,2,4"

// Throws Error(device) unless `ranks` lists at least one rank of a world of that size, each once.
void check_group(const std::vector<int>& ranks, int world_size);

}  // namespace gptrain
