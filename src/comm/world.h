// All ranks of a run and the groups that they form.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/activity.h"
#include "comm/communicator.h"

namespace gptrain::inline comm {

class ExchangeScratch;

// Properties of a group.
struct GroupUse {
  std::string lane = {};                               // lane that uses the group, for reports; empty: no lane
  std::shared_ptr<ExchangeScratch> scratch = nullptr;  // shared scratch (comm/exchange.h); null: the group's own
  bool reduces = true;                                 // false: needs no scratch memory and refuses reductions
  bool patient = false;                                // long waits yield the core, as no step depends on them
};

// One rank's view of the run. A process may hold the worlds of several ranks, each used by its own thread.
class World {
 public:
  virtual ~World() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Returns true if ranks are processes, false if they are threads of one.
  virtual bool of_processes() const = 0;
  // Returns the name of the node on which `rank` runs.
  virtual const std::string& host(int rank) const = 0;
  // Current work of this rank, for the report if it is lost. Groups note their operations; the owner of the world notes
  // steps and phases.
  Activity& activity() { return *activity_; }

  // Creates the group of `ranks` (of the world, each once; list order is rank order in the group) and returns this
  // rank's handle, or null if it is not a member. Collective over the world: every rank, member or not, creates the
  // same groups in the same order, once at the start. Handles may outlive the world. THROWS Error(device) if `ranks` is
  // empty, has a rank twice or a wrong one, or differs from another rank's. Groups of the same ranks are independent.
  virtual std::unique_ptr<Communicator> make_group(const std::vector<int>& ranks, const GroupUse& use = {}) = 0;

  // Waits until no rank needs another. The destructor does so too, but tells no error. THROWS Error(device).
  virtual void end() {}

 protected:
  const std::shared_ptr<Activity> activity_ = std::make_shared<Activity>();
};

// Returns a world whose ranks are threads of this process: element r is rank r's. Destroying a world before its rank
// has made all groups counts as leaving the groups that the others still make.
std::vector<std::unique_ptr<World>> make_local_world(int size);

// Runs `body` on every rank of a local world, each in its own thread, and returns when all have ended. Rethrows the
// exception of the first rank that failed by itself (not with PeerGone), preferring one with a message: an empty one
// means that another rank reports it.
void run_local_ranks(int size, const std::function<void(World&)>& body);

std::string list_ranks(const std::vector<int>& ranks);  // "0,2,4"

// Throws Error(device) unless `ranks` lists at least one rank of a world of `world_size`, each once.
void check_group(const std::vector<int>& ranks, int world_size);

}  // namespace gptrain::comm
