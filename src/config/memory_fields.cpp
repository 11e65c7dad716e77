// The section "memory".
#include "config/field_builder.h"
#include "config/fields.h"

namespace gptrain::inline config {
namespace {

// Takes a number of bytes, or the word for all memory that the device has left.
Builder activation_budget_field() {
  static constexpr const char* fit = "fit";
  Builder builder;
  builder.path = "memory.activation_budget";
  builder.description =
      "bytes that the activations of a rank may take; fit: all memory that the rest of the step leaves on the device";
  IntegerOrWordRule rule;
  rule.integer.min = 1;
  rule.integer.max = uint64_t{1} << 50;
  rule.words = {fit};
  builder.rule = rule;
  builder.get = [](const RunConfig& config) {
    const int64_t bytes = config.memory.activation_budget;
    return bytes > 0 ? Json(bytes) : Json(fit);
  };
  builder.set = [](RunConfig& config, const Json& json) {
    config.memory.activation_budget = json.is_string() ? 0 : json.get<int64_t>();
  };
  return builder.usually("8000000000")
      .only_with({"memory.recompute", "memory.recompute is optimal",
                  when(&RunConfig::memory,
                       [](const MemoryConfig& memory) { return memory.recompute == RecomputeKind::optimal; })})
      .changeable();
}

// Takes a number of blocks, or a word.
Builder offload_activations_field() {
  Builder builder;
  builder.path = "memory.offload_activations";
  builder.description =
      "blocks of a stage whose saved activations wait for backward in the host's memory: none; hidden (as many as can "
      "be copied without slowing the ops); all; a number; optimal (with memory.recompute optimal: those that save time "
      "within its budget)";
  IntegerOrWordRule rule;
  rule.integer.min = 1;
  rule.integer.max = 10'000;
  rule.words.assign(offload_words.begin(), offload_words.end());
  builder.rule = rule;
  builder.get = [](const RunConfig& config) {
    const OffloadChoice choice = config.memory.offload;
    return choice.any() && choice.is_number() ? Json(choice.blocks()) : Json(offload_name(choice));
  };
  builder.set = [](RunConfig& config, const Json& json) {
    config.memory.offload = json.is_string() ? parse_offload(json.get<std::string>()).value()
                                             : OffloadChoice::of_blocks(json.get<int64_t>());
  };
  return builder.usually(R"("hidden")").changeable();
}

Builder state_place_field(const char* path, StatePlace MemoryConfig::*member, bool may_fit, const char* description) {
  const auto named = [](StatePlace place) { return std::pair(std::string(state_place_name(place)), place); };
  std::vector<std::pair<std::string, StatePlace>> places = {named(StatePlace::none), named(StatePlace::host),
                                                            named(StatePlace::disk)};
  if (may_fit) places.push_back(named(StatePlace::fit));
  return words<MemoryConfig, StatePlace>(path, &RunConfig::memory, member, places, {}, description).changeable();
}

}  // namespace

void add_memory_fields(std::vector<Field>& table) {
  using M = MemoryConfig;
  const Dependency every_nth{"memory.recompute", "memory.recompute is every_nth",
                             when(&RunConfig::memory, [](const MemoryConfig& memory) {
                               return memory.recompute == RecomputeKind::every_nth;
                             })};
  const Dependency not_gated{
      "model.activation", "model.activation is gelu or gelu_tanh",
      when(&RunConfig::model, [](const ModelConfig& model) { return !is_gated(model.activation); })};
  const Dependency on_disk{"memory.offload_optimizer", "memory.offload_optimizer is disk or fit",
                           when(&RunConfig::memory, [](const MemoryConfig& memory) { return memory.uses_disk(); })};
  const Dependency away_or_fit{
      "memory.offload_optimizer", "memory.offload_optimizer is host, disk or fit",
      when(&RunConfig::memory, [](const MemoryConfig& memory) { return memory.keeps_state_away(); })};
  const Dependency away{"memory.offload_optimizer", "memory.offload_optimizer is host or disk",
                        when(&RunConfig::memory, [](const MemoryConfig& memory) {
                          return memory.keeps_state_away() && !memory.fits_places();
                        })};
  table.insert(
      table.end(),
      {
          words<M, RecomputeKind>(
              "memory.recompute", &RunConfig::memory, &M::recompute,
              {{"none", RecomputeKind::none},
               {"selective", RecomputeKind::selective},
               {"ffn", RecomputeKind::ffn},
               {"block", RecomputeKind::block},
               {"every_nth", RecomputeKind::every_nth},
               {"optimal", RecomputeKind::optimal}},
              {},
              "parts that the backward pass recomputes: none; selective (attention, norms and "
              "activation of each block, but no linear); ffn (norms and FFN or experts of each block, but no "
              "attention); block (whole blocks); every_nth (every "
              "n-th block); optimal (what takes the least time within activation_budget)")
              .changeable(),
          field("memory.recompute_interval", &RunConfig::memory, &M::recompute_interval, IntegerRule{1, 10'000, {}},
                "n of every_nth: blocks 0, n, 2n, ... are recomputed")
              .required("2")
              .only_with(every_nth)
              .changeable(),
          activation_budget_field(),
          offload_activations_field(),
          field("memory.activation_bits", &RunConfig::memory, &M::activation_bits, IntegerRule{2, 16, {}},
                "bits that are saved of each input of GELU: 16 (the input itself), or 4, 3 or 2 (a derivative of 16, 8 "
                "or 4 levels, arXiv 2202.00441, which changes gradients a little)")
              .only_with(not_gated)
              .changeable(),
          field("memory.saved_inputs", &RunConfig::memory, &M::saved_inputs, IntegerRule{8, 16, {}},
                "bits that are saved of the inputs of linears and norms in blocks: 16 (the inputs themselves) or 8 "
                "(copies with a scale for every 128 columns of a row, which changes gradients a little)")
              .changeable(),
          field("memory.linear_projection", &RunConfig::memory, &M::linear_projection, ObjectRule{projection_keys},
                "some linears keep, in place of their input, a random projection of it with fewer rows per sequence, "
                "from which backward estimates the gradient of the weight without bias (arXiv 2201.13195); {}: none")
              .usually(R"({"kind": "rademacher", "share": 0.2})")
              .changeable(),
          field("memory.loss_chunk_tokens", &RunConfig::memory, &M::loss_chunk_tokens, IntegerRule{0, 1 << 24, {}},
                "rows of logits (one for each token) that are in memory at a time; 0: 8192 on a GPU, 2048 on the CPU")
              .changeable(),
          state_place_field(
              "memory.offload_optimizer", &M::offload_optimizer, true,
              "where the optimizer's state and master weights lie between updates: in the device's "
              "memory (none), in that of a GPU's host, where its CPU updates them (host, arXiv 2101.06840), or in "
              "working files on memory.disk_path, which are read ahead, updated and written beside the "
              "passes (arXiv 2104.07857); fit: for as few layers as make the run fit into memory, on the host of a "
              "GPU as long as that has room, else in working files; the result has the same bits"),
          field("memory.offload_optimizer_share", &RunConfig::memory, &M::offload_optimizer_share,
                NumberRule{.min = 0, .max = 1},
                "share of the layers, from the last one on, whose optimizer state lies on the host or in working "
                "files; that of the others stays in the device's memory; the result has the same bits")
              .usually("0.5")
              .only_with(away)
              .changeable(),
          words<M, UpdateTime>("memory.offload_update", &RunConfig::memory, &M::offload_update,
                               named_words<UpdateTime>(update_time_names), {},
                               "weights that a step computes with: those of all updates before it (now), or not yet "
                               "those of the last update, which runs beside the whole step (delayed); delayed CHANGES "
                               "WHAT IS TRAINED, and takes a second copy of weights and gradients")
              .only_with(away),
          field("memory.update_threads", &RunConfig::memory, &M::update_threads, IntegerRule{0, 1024, {}},
                "threads of a rank's updates beside the passes, which run on that many of the process's last cores if "
                "it has more; 0: as many as the rank has for its ops, on any core")
              .only_with(away_or_fit)
              .changeable(),
          state_place_field("memory.offload_parameters", &M::offload_parameters, true,
                            "where the weights lie between the passes of their layers: in the device's memory (none), "
                            "or beside the optimizer's state, from where they are read ahead of each pass; fit (with "
                            "memory.offload_optimizer fit): there if memory lacks room; the result has the same bits")
              .only_with(away_or_fit),
          state_place_field(
              "memory.offload_gradients", &M::offload_gradients, false,
              "where summed gradients lie until the update: in the device's memory (none), or beside the "
              "optimizer's state, where they are written as backward passes make them; the result has the "
              "same bits")
              .only_with(away),
          field("memory.disk_path", &RunConfig::memory, &M::disk_path, TextRule{false, true},
                "folder for working files; several, one on each drive, are separated by ':' and take a share each")
              .required("\"/scratch/nvme0\"")
              .only_with(on_disk)
              .changeable(),
          field("memory.disk_units", &RunConfig::memory, &M::disk_units, IntegerRule{0, 10'000, {}},
                "with optimizer state on disk: number of layers for whose state there is room in memory, at least 3; "
                "with more, more of it is read and written while the passes run; 0: as many as keep the drives busy "
                "meanwhile, if memory has room; the result has the same bits")
              .usually("8")
              .only_with(on_disk)
              .changeable(),
          words<M, DiskClones>(
              "memory.disk_clones", &RunConfig::memory, &M::disk_clones, named_words<DiskClones>(disk_clones_names), {},
              "with checkpoint.asynchronous: checkpoints read state on disk from clones of the working "
              "files, which take no memory, but disk space for what steps write meanwhile, up to one "
              "more copy (always; file systems that can: XFS with reflink, Btrfs), or from a copy in "
              "memory (never); auto: from clones if all folders' file systems can")
              .only_with(on_disk)
              .changeable(),
          field("memory.disk_transfer_bytes", &RunConfig::memory, &M::disk_transfer_bytes,
                IntegerRule{4096, 4 << 20, {}},
                "bytes of one read or write of a working file, a power of two; gptrain bench storage finds the best")
              .only_with(on_disk)
              .changeable(),
          field("memory.disk_depth", &RunConfig::memory, &M::disk_depth, IntegerRule{1, 1024, {}},
                "largest number of reads and writes of working files that a rank has under way at a time; gptrain "
                "bench storage finds the best")
              .only_with(on_disk)
              .changeable(),
      });
}

}  // namespace gptrain::config
