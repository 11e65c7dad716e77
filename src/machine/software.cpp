#include "machine/software.h"

#include <fmt/format.h>

#include "config/parallelism.h"

namespace gptrain::inline machine {
namespace {

// Returns the figure of the generation, or of the other one if there is none; 1 if the profile has neither.
double slowness_of(ProfileReader& reader, double compute_capability) {
  const size_t own = compute_capability >= published_generations.back().compute_capability ? 1 : 0;
  double found = 1;
  for (const size_t generation : {1 - own, own}) {
    const std::string path = fmt::format("slowness.{}", published_generations[generation].name);
    if (reader.has(path)) found = reader.figure(path);
  }
  return found;
}

}  // namespace

Software find_software(std::string_view name, double compute_capability) {
  const ProfileText found = find_profile("software profile", name, built_in_software());
  ProfileReader reader(found.text, found.origin);
  Software software;
  software.name = reader.word("name");
  software.release = reader.word("release");
  software.fused_attention = reader.flag("fused_attention");
  software.own_attention = software.is_own();
  software.overlaps = Software::all_lanes(reader.flag("overlaps.pipeline"));
  software.overlaps[LaneKind::tensor] = reader.flag("overlaps.tensor");
  software.overlaps_sequence = reader.flag("overlaps.sequence");
  const bool overlaps_data = reader.flag("overlaps.data");
  software.overlaps[LaneKind::gradients] = overlaps_data;
  software.overlaps[LaneKind::weights] = overlaps_data;
  software.gathers_before_products = reader.flag("gathers_before_products");
  software.sums_gradients_last = reader.flag("sums_gradients_last");
  software.sends_tokens_once = reader.flag("experts.sends_tokens_once");
  software.hidden_exchange = reader.share_from_0("experts.hidden_exchange");
  software.nic_share = reader.share("nic_share");
  software.slowness = slowness_of(reader, compute_capability);
  reader.finish();
  return software;
}

std::vector<std::string> software_names() {
  std::vector<std::string> names;
  for (const BuiltInProfile& profile : built_in_software()) names.emplace_back(profile.name);
  return names;
}

std::string_view published_software(double compute_capability, int64_t zero) {
  const bool is_hopper = compute_capability >= published_generations.back().compute_capability;
  if (cuts_weights(zero)) return is_hopper ? "llm-foundry" : "torchtitan";
  return is_hopper ? "nemo" : "megatron-lm";
}

}  // namespace gptrain::machine
