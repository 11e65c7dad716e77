#include "train/replicas.h"

#include <fmt/format.h>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/agree.h"
#include "comm/texts.h"
#include "parallel/gradient_reducer.h"

namespace gptrain::inline train {

void compare_replicas(const RunContext& context, const TrainingStep& step, int64_t after_step) {
  const RankGroups& groups = context.groups;
  const World& world = context.world;
  std::string fault;
  const auto compare = [&](GroupKind kind, const char* what, uint32_t checksum) {
    const std::vector<std::string> all = gather_texts(groups.group(kind), fmt::format("{:08x}", checksum));
    for (size_t i = 1; i < all.size() && fault.empty(); ++i) {
      if (all[i] == all[0]) continue;
      const std::vector<int64_t> ranks = group_ranks(context.config, groups.mesh(), groups.rank(), kind);
      const auto rank = static_cast<int>(ranks[i]);
      fault = fmt::format(
          "after step {} the {} of rank {} on {} differ from those of rank {} on {}, which should be the same: memory "
          "or network at fault; go on from a checkpoint with --resume latest",
          after_step, what, rank, world.host(rank), ranks[0], world.host(static_cast<int>(ranks[0])));
    }
  };
  for (const ReplicaGroup replicas : {ReplicaGroup::data, ReplicaGroup::expert_data}) {
    const GroupKind kind = kind_of(replicas);
    if (groups.group(kind) != nullptr) compare(kind, "weights", step.weights_checksum(replicas));
  }
  if (groups.num_islands() > 1) compare(GroupKind::islands, "weights", step.weights_checksum(ReplicaGroup::data));
  if (groups.group(GroupKind::tensor) != nullptr) compare(GroupKind::tensor, "norms", step.norms_checksum());
  agree_on(context.all(), world, [&] {
    if (!fault.empty()) throw Error(ExitCode::device, "{}", fault);
  });
}

}  // namespace gptrain::train
