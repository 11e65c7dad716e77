#include "config/fields.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/json.h"
#include "base/loss_scale.h"
#include "config/field_builder.h"

namespace gptrain::inline config {
namespace {

Builder layers_per_stage_field() {
  Builder builder;
  builder.path = "parallel.layers_per_stage";
  builder.description =
      "layers of each chunk, in forward order; with virtual_stages one number for each of pipeline * virtual_stages "
      "chunks; []: equal where they divide, else spread so that the slowest chunk is as fast as can be";
  builder.rule = IntegerListRule{{0, 1 << 16, {}}};
  builder.get = [](const RunConfig& config) -> Json { return config.parallel.layers_per_stage; };
  builder.set = [](RunConfig& config, const Json& json) {
    config.parallel.layers_per_stage = json.get<std::vector<int64_t>>();
  };
  return builder.usually("[2, 2]");
}

constexpr const char* pure = "bf16-pure";

// "bf16-pure" stands for bf16 and a flag, which only the optimizer's update reads.
Builder compute_field(const Words<DType>& dtypes, std::vector<RefusedWord> refused) {
  Builder builder = words<PrecisionConfig, DType>(
      "precision.compute", &RunConfig::precision, &PrecisionConfig::compute, dtypes, std::move(refused),
      "type of weights, activations and matrix products; bf16-pure: bf16 without fp32 master weights (except of "
      "norms); updated weights are rounded stochastically to bf16");
  std::get<WordRule>(builder.rule).words.emplace_back(pure);
  builder.get = [get = builder.get](const RunConfig& config) {
    return config.precision.pure ? Json(pure) : get(config);
  };
  builder.set = [set = builder.set](RunConfig& config, const Json& json) {
    config.precision.pure = json == pure;
    set(config, config.precision.pure ? Json("bf16") : json);
  };
  return builder;
}

void add_data_and_batch(std::vector<Field>& table) {
  const std::string example = R"([{"path": "data/corpus/train"}])";
  table.insert(
      table.end(),
      {
          field("data.train", &RunConfig::data, &DataConfig::train, SourcesRule{},
                "token files to train on; on resume paths and weights may change, the number of sources may not")
              .required(example),
          field("data.validation", &RunConfig::data, &DataConfig::validation,
                SourcesRule{.may_be_empty = true, .counts_epochs = false}, "token files to validate on")
              .usually(example)
              .changeable(),
          field("data.temperature", &RunConfig::data, &DataConfig::temperature, NumberRule{.min = 0, .max = 1e6},
                "T > 0 multiplies the weights of training sources by their size^(1/T): 1 draws samples by size, a "
                "larger T more evenly; 0: weights are not multiplied")
              .changeable(),
          field(
              "data.phases", &RunConfig::data, &DataConfig::phases, PhasesRule{},
              "weights of the training sources up to given steps; after the last phase the weights in data.train hold")
              .usually(R"([{"until_step": 1000, "weights": [1, 2]}])")
              .changeable(),
          field("data.skip_samples", &RunConfig::data, &DataConfig::skip_samples, SampleRangesRule{},
                "ranges of samples that the run leaves out, numbered from 0 in the order of the training data; on "
                "resume only ranges ahead of the checkpoint may change")
              .usually(R"([{"first": 1000, "count": 64}])")
              .changeable(),
          field("data.tokenizer", &RunConfig::data, &DataConfig::tokenizer, TextRule{.is_path = true},
                "tokenizer of the data, named as in `data pack`; auto: the one recorded in the sources' "
                "PREFIX.meta.json; sources packed with another tokenizer are refused")
              .changeable(),
          field("data.checksums", &RunConfig::data, &DataConfig::checksums, BooleanRule{},
                "compare each block of 64 MiB, when it is first read, with its checksum in PREFIX.meta.json, if there "
                "is one")
              .changeable(),
          field("data.mask_documents", &RunConfig::data, &DataConfig::mask_documents, BooleanRule{},
                "a token attends to the tokens of its own document only; positions are counted from the start of the "
                "sample, not of the document"),
          field("data.max_documents", &RunConfig::data, &DataConfig::max_documents, IntegerRule{0, 1 << 24, {}},
                "documents per sample for which cuDNN's attention on a GPU takes memory, which the samples of a call "
                "share; calls with more documents, or with 0 all calls, are computed by gptrain's own kernels")
              .usually("8")
              .only_with({"data.mask_documents", "data.mask_documents is true",
                          when(&RunConfig::data, [](const DataConfig& data) { return data.mask_documents; })})
              .changeable(),
          field("batch.global", &RunConfig::batch, &BatchConfig::global,
                IntegerRule{1, static_cast<uint64_t>(max_batch_sequences), {}},
                "sequences per step; default: micro * accumulation")
              .derived("16")
              .changeable(),
          field("batch.micro", &RunConfig::batch, &BatchConfig::micro, IntegerRule{1, 1 << 20, {}},
                "sequences per micro-batch and rank; default: global / accumulation, or the largest divisor of global "
                "up to 8")
              .derived("8")
              .changeable(),
          field("batch.accumulation", &RunConfig::batch, &BatchConfig::accumulation,
                IntegerRule{1, static_cast<uint64_t>(max_batch_sequences), {}},
                "micro-batches per step and rank; default: global / micro / data ranks")
              .derived("2")
              .changeable(),
      });
}

void add_parallel_and_precision(std::vector<Field>& table) {
  using P = ParallelConfig;
  const Dependency pipelined{
      "parallel.pipeline", "parallel.pipeline is greater than 1",
      when(&RunConfig::parallel, [](const ParallelConfig& parallel) { return parallel.pipeline > 1; })};
  const Words<DType> dtypes = {{"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}};
  const Dependency fp16{
      "precision.compute", "precision.compute is fp16",
      when(&RunConfig::precision, [](const PrecisionConfig& precision) { return precision.scales_loss(); })};
  const std::vector<RefusedWord> refused = {
      {"fp8", "fp8 is for the linears of blocks only, whose key is precision.linears", "bf16"},
  };
  std::vector<RefusedWord> refused_reduce = refused;
  refused_reduce.push_back({"fp16", "sums of gradients leave the range of fp16", "bf16"});
  const std::string stale =
      "its stages compute gradients with weights of earlier steps, which no other layout reproduces";
  const std::vector<RefusedWord> stale_schedules = {{"pipedream", stale, "1f1b"}, {"pipedream-2bw", stale, "1f1b"}};
  const Words<DType> linears = {dtypes[0], dtypes[1], dtypes[2], {"fp8", DType::f8e4m3}};
  table.insert(
      table.end(),
      {
          field("parallel.tensor", &RunConfig::parallel, &P::tensor, IntegerRule{1, 1 << 16, {}},
                "ranks that share each layer; divides num_heads and ffn_hidden_size")
              .changeable(),
          field("parallel.context", &RunConfig::parallel, &P::context, IntegerRule{1, 1 << 16, {}},
                "ranks that share each sequence: each has a part of its tokens; divides model.sequence_length")
              .changeable(),
          words<P, ContextMethod>("parallel.context_method", &RunConfig::parallel, &P::context_method,
                                  named_words<ContextMethod>(context_method_names), {},
                                  "attention of ranks that share sequences: heads, they exchange tokens for heads, "
                                  "so the ranks must divide num_heads; ring, each has an early and a late run of "
                                  "tokens, and receives the other ranks' keys and values; auto: ring if the ranks "
                                  "do not divide num_heads or are on several nodes, or with memory.saved_inputs 8, "
                                  "else heads")
              .only_with(
                  {"parallel.context", "parallel.context is greater than 1",
                   when(&RunConfig::parallel, [](const ParallelConfig& parallel) { return parallel.context > 1; })})
              .changeable(),
          field("parallel.expert", &RunConfig::parallel, &P::expert, IntegerRule{1, 1 << 16, {}},
                "ranks of a stage that hold the experts of model.moe between them: tokens go to the ranks of their "
                "experts and back; must divide model.moe.experts; parallel.expert times parallel.expert_tensor must "
                "divide the "
                "ranks of a stage")
              .changeable(),
          field("parallel.expert_tensor", &RunConfig::parallel, &P::expert_tensor, IntegerRule{1, 1 << 16, {}},
                "ranks that share each expert's features: 1, each rank has whole experts; or parallel.tensor, experts "
                "are cut as dense FFNs are")
              .only_with(
                  {"parallel.expert", "parallel.expert is greater than 1",
                   when(&RunConfig::parallel, [](const ParallelConfig& parallel) { return parallel.expert > 1; })})
              .changeable(),
          field("parallel.expert_room", &RunConfig::parallel, &P::expert_room, NumberRule{.min = 1, .max = 1e6},
                "rows for which the experts of a rank have room, as a multiple of those that the rank sends")
              .only_with(
                  {"parallel.expert", "parallel.expert is greater than 1",
                   when(&RunConfig::parallel, [](const ParallelConfig& parallel) { return parallel.expert > 1; })})
              .changeable(),
          words<P, ExpertOverflowRule>(
              "parallel.expert_overflow", &RunConfig::parallel, &P::expert_overflow,
              named_words<ExpertOverflowRule>(expert_overflow_names), {},
              "what happens to rows without room: stop, the step changes nothing and the run ends; drop, their tokens "
              "go without these experts, so that results depend on the layout")
              .only_with(
                  {"parallel.expert", "parallel.expert is greater than 1",
                   when(&RunConfig::parallel, [](const ParallelConfig& parallel) { return parallel.expert > 1; })})
              .changeable(),
          field("parallel.pipeline", &RunConfig::parallel, &P::pipeline, IntegerRule{1, 1 << 16, {}},
                "stages that share the layers; at most model.num_layers")
              .changeable(),
          field("parallel.virtual_stages", &RunConfig::parallel, &P::virtual_stages, IntegerRule{1, 1 << 12, {}},
                "chunks of layers on each stage; default: 2 where pipeline_schedule is interleaved or zero-bubble-v, "
                "else 1")
              .derived("2")
              .only_with(pipelined)
              .changeable(),
          words<P, PipelineOrder>("parallel.pipeline_schedule", &RunConfig::parallel, &P::pipeline_schedule,
                                  named_words<PipelineOrder>(pipeline_order_names), stale_schedules,
                                  "order of forward and backward passes on the stages; it changes memory and time, not "
                                  "results (only zero-bubble-v with a tied head rounds differently)")
              .only_with(pipelined)
              .changeable(),
          words<P, RankOrder>(
              "parallel.rank_order", &RunConfig::parallel, &P::rank_order, named_words<RankOrder>(rank_order_names), {},
              "order of the axes in the numbers of ranks, the axis of neighbouring ranks first; the dry run shows "
              "the links of either order")
              .only_with(pipelined)
              .changeable(),
          layers_per_stage_field().only_with(pipelined).changeable(),
          field("parallel.zero", &RunConfig::parallel, &P::zero, IntegerRule{0, 3, {}},
                "state that is sharded over the data ranks (ZeRO): 0 none, 1 optimizer state, 2 also gradients, 3 also "
                "weights")
              .changeable(),
          field("parallel.zero_node_copy", &RunConfig::parallel, &P::zero_node_copy, BooleanRule{},
                "parallel.zero cuts over the data ranks of a node only, and each node holds a copy of all: weights are "
                "gathered within nodes, and gradients are summed within nodes, then between them (hybrid sharding)")
              .only_with({"parallel.zero", "parallel.zero is greater than 0",
                          when(&RunConfig::parallel, [](const ParallelConfig& parallel) { return parallel.zero > 0; })})
              .changeable(),
          field("parallel.sequence", &RunConfig::parallel, &P::sequence, BooleanRule{},
                "the tensor ranks also share the rows of norms, dropout and the residual stream")
              .only_with(
                  {"parallel.tensor", "parallel.tensor is greater than 1",
                   when(&RunConfig::parallel, [](const ParallelConfig& parallel) { return parallel.tensor > 1; })})
              .changeable(),
          field("parallel.overlap_tensor", &RunConfig::parallel, &P::overlap_tensor, BooleanRule{},
                "products of linears run in pieces of rows, and one piece travels between the tensor ranks while the "
                "next is computed. This is so in the forward sums of a branch and, with parallel.sequence and more "
                "than two ranks, in the backward gathers. Sums keep their order; products of fewer rows may round "
                "differently")
              .changeable(),
          field("parallel.elastic", &RunConfig::parallel, &P::elastic, BooleanRule{},
                "train on as many of the started ranks as batch.global divides over, and let the others idle; "
                "batch.accumulation follows from their number, so that a run may go on with fewer or more ranks")
              .changeable(),
          field("parallel.local_steps", &RunConfig::parallel, &P::local_steps, ObjectRule{local_steps_keys},
                "islands of data ranks that sum gradients among themselves only, and average their weights every few "
                "steps (post-local SGD, DiLoCo), which changes what is trained; {}: none")
              .usually(R"({"islands": 2, "every": 30, "outer": "nesterov"})"),
          compute_field(dtypes, refused),
          words<PrecisionConfig, DType>("precision.residual", &RunConfig::precision, &PrecisionConfig::residual, dtypes,
                                        refused, "type of the residual stream; default: compute")
              .derived(R"("fp32")"),
          words<PrecisionConfig, DType>(
              "precision.reduce", &RunConfig::precision, &PrecisionConfig::reduce, dtypes, refused_reduce,
              "type in which data ranks send gradients to each other; a sum is taken in fp32 and rounded once")
              .changeable(),
          words<PrecisionConfig, DType>(
              "precision.gradients", &RunConfig::precision, &PrecisionConfig::gradients,
              {{"fp32", DType::f32}, {"bf16", DType::bf16}}, refused_reduce,
              "type in which a rank keeps the sum of gradients over micro-batches; bf16: each micro-batch's gradients "
              "are computed and added in fp32, then the sum is rounded stochastically; data ranks sum in fp32, the two "
              "stages of a tied table in bf16")
              .only_with({"precision.compute", "precision.compute is bf16-pure",
                          when(&RunConfig::precision, [](const PrecisionConfig& precision) { return precision.pure; })})
              .changeable(),
          words<PrecisionConfig, DType>("precision.linears", &RunConfig::precision, &PrecisionConfig::linears, linears,
                                        {},
                                        "type of the matrix products of linears in transformer blocks; fp8, on GPUs "
                                        "that have it: E4M3 forward, E5M2 for gradients; default: compute")
              .derived(R"("fp32")")
              .changeable(),
          words<PrecisionConfig, DType>(
              "precision.weight_gradients", &RunConfig::precision, &PrecisionConfig::weight_gradients, linears, {},
              "type of both factors (input and output gradient) in the products that give the gradients of linears' "
              "weights in blocks; these linears also save their input in it; products are summed in fp32; may be bf16 "
              "with fp32 linears, fp8 with bf16 ones; default: linears")
              .derived(R"("fp32")")
              .changeable(),
          field("precision.amax_history", &RunConfig::precision, &PrecisionConfig::amax_history,
                IntegerRule{0, 8192, {}},
                "steps whose largest elements give FP8 scales (delayed scaling); 0: each tensor's own largest")
              .only_with({"precision.linears", "precision.linears or weight_gradients is fp8",
                          when(&RunConfig::precision, [](const PrecisionConfig& p) { return p.has_fp8(); })})
              .changeable(),
          field("precision.loss_scale", &RunConfig::precision, &PrecisionConfig::loss_scale,
                IntegerRule{static_cast<int64_t>(least_loss_scale), static_cast<uint64_t>(most_loss_scale), {}},
                "factor of the loss' gradients in the first step, a power of two; it adapts in later steps")
              .only_with(fp16),
          field("precision.loss_scale_window", &RunConfig::precision, &PrecisionConfig::loss_scale_window,
                IntegerRule{1, max_steps, {}}, "steps in a row without overflow after which the loss scale doubles")
              .only_with(fp16)
              .changeable(),
      });
}

void add_lr_curve(std::vector<Field>& table) {
  using S = LrCurveConfig;
  const Dependency wsd{
      "schedule.type", "schedule.type is wsd",
      when(&RunConfig::lr_curve, [](const LrCurveConfig& curve) { return curve.type == LrCurve::wsd; })};
  const Dependency decays{
      "schedule.type", "schedule.type is linear, cosine or wsd",
      when(&RunConfig::lr_curve, [](const LrCurveConfig& curve) { return curve.type != LrCurve::constant; })};
  table.insert(table.end(),
               {
                   words<S, LrCurve>("schedule.type", &RunConfig::lr_curve, &S::type,
                                     {{"constant", LrCurve::constant},
                                      {"linear", LrCurve::linear},
                                      {"cosine", LrCurve::cosine},
                                      {"wsd", LrCurve::wsd}},
                                     {}, "course of the learning rate after warm-up; wsd: warm-up, stable, decay")
                       .changeable(),
                   field("schedule.warmup_steps", &RunConfig::lr_curve, &S::warmup_steps, IntegerRule{0, max_steps, {}},
                         "steps of linear warm-up")
                       .changeable(),
                   field("schedule.decay_steps", &RunConfig::lr_curve, &S::decay_steps, IntegerRule{1, max_steps, {}},
                         "steps of the final decay")
                       .required("100")
                       .only_with(wsd)
                       .changeable(),
                   field("schedule.min_lr", &RunConfig::lr_curve, &S::min_lr, NumberRule{.min = 0, .max = 10},
                         "learning rate at the end")
                       .only_with(decays)
                       .changeable(),
               });
}

void add_checkpoint_log_comm(std::vector<Field>& table) {
  using C = CheckpointConfig;
  table.insert(
      table.end(),
      {
          field("checkpoint.every_steps", &RunConfig::checkpoint, &C::every_steps, IntegerRule{0, max_steps, {}},
                "steps from one checkpoint to the next; 0: only at the end and when stopped")
              .changeable(),
          field("checkpoint.every_seconds", &RunConfig::checkpoint, &C::every_seconds, NumberRule{.min = 0, .max = 1e9},
                "seconds from one checkpoint to the next, whatever the step; 0: only every_steps counts")
              .usually("1800.0")
              .changeable(),
          field("checkpoint.asynchronous", &RunConfig::checkpoint, &C::asynchronous, BooleanRule{},
                "a checkpoint during a run delays its step only by copying the state within memory; the copy takes "
                "memory of the host, and is written to disk while the next steps run")
              .changeable(),
          field("checkpoint.keep_last", &RunConfig::checkpoint, &C::keep_last, IntegerRule{1, 1'000'000, {}},
                "newest checkpoints to keep")
              .changeable(),
          field("checkpoint.keep_every", &RunConfig::checkpoint, &C::keep_every, IntegerRule{0, max_steps, {}},
                "checkpoints of steps that are multiples of this number are never removed; 0: only keep_last counts")
              .changeable(),
          field("log.every_steps", &RunConfig::log, &LogConfig::every_steps, IntegerRule{1, max_steps, {}},
                "steps from one logged step to the next")
              .changeable(),
          field("comm.timeout_seconds", &RunConfig::comm, &CommConfig::timeout_seconds,
                NumberRule{.min = 1, .max = 86'400},
                "seconds that ranks wait for each other at the start, and after which a silent rank counts as lost")
              .changeable(),
          field("comm.interface", &RunConfig::comm, &CommConfig::interface, TextRule{},
                "network interface, or an address of this machine, on which ranks listen; auto: the address from which "
                "they reach MASTER_ADDR")
              .changeable(),
          field("comm.mixed_machines", &RunConfig::comm, &CommConfig::mixed_machines, BooleanRule{},
                "ranks may run on different instruction sets or GPU models, which round differently")
              .changeable(),
          field("comm.compression", &RunConfig::comm, &CommConfig::compression, ObjectRule{compression_keys},
                "codes, or factors of low rank, in which data ranks send gradients to each other, which changes "
                "gradients; "
                "{}: none")
              .usually(R"({"kind": "int8"})")
              .changeable(),
          words<CommConfig, WeightCodec>(
              "comm.weights", &RunConfig::comm, &CommConfig::weights, named_words<WeightCodec>(weight_codec_names), {},
              "how ranks gather weights with parallel.zero = 3: as they are, or in codes of 8 bits with a scale for "
              "every 128 elements; all passes then use the decoded weights, and updates the exact ones")
              .changeable(),
          words<CommConfig, CommHierarchy>(
              "comm.hierarchy", &RunConfig::comm, &CommConfig::hierarchy,
              named_words<CommHierarchy>(comm_hierarchy_names), {},
              "sums of gradients over data ranks and gathers of their weights: flat: over all ranks at once; node: "
              "within nodes and between them, so that less passes between nodes, and sums round in another order; "
              "auto: the one that is predicted to be faster; sums are flat if all ranks share a node, or if each has "
              "its own")
              .changeable(),
          field("comm.ranks_per_node", &RunConfig::comm, &CommConfig::ranks_per_node, IntegerRule{0, 1 << 20, {}},
                "neighbouring ranks that count as one node for comm.hierarchy and parallel.zero_node_copy; 0: those "
                "with one host name, in a plan those on a node of the cluster")
              .changeable(),
          field("comm.compare_every_steps", &RunConfig::comm, &CommConfig::compare_every_steps,
                IntegerRule{0, max_steps, {}},
                "steps between two checks that ranks hold the same weights where they should; 0: never")
              .changeable(),
      });
}

void add_run(std::vector<Field>& table) {
  const auto section = &RunConfig::run;
  using R = RunSettings;
  const Dependency validation{"data.validation", "data.validation names a source",
                              when(&RunConfig::data, [](const DataConfig& data) { return !data.validation.empty(); })};
  const Dependency samples{
      "run.sample_every_steps", "run.sample_every_steps is greater than 0",
      when(&RunConfig::run, [](const RunSettings& settings) { return settings.sample_every_steps > 0; })};
  table.insert(
      table.end(),
      {
          field("run.steps", section, &R::steps, IntegerRule{1, max_steps, {}}, "optimizer steps of the run")
              .required("1000")
              .changeable(),
          field("run.seed", section, &R::seed, IntegerRule{0, UINT64_MAX, {}},
                "seed of initial weights, dropout and the order of the data"),
          field("run.out", section, &R::out, TextRule{.is_path = true},
                "folder for metrics, checkpoints and the report; a relative path starts at the working directory")
              .required(R"("runs/demo")")
              .changeable(),
          words<R, DeviceKind>("run.device", section, &R::device,
                               {{"auto", DeviceKind::automatic}, {"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}},
                               {}, "backend; auto: CUDA where there is a device, else the CPU")
              .changeable(),
          field("run.threads", section, &R::threads, IntegerRule{0, 1024, {}},
                "CPU threads; 0: every core the process may use")
              .changeable(),
          field("run.thread_independent", section, &R::thread_independent, BooleanRule{},
                "same bits for any number of CPU threads; slower with many threads or few tokens")
              .changeable(),
          field("run.deterministic", section, &R::deterministic, BooleanRule{},
                "same bits in every run of the same program on the same machines; false: on a GPU attention's "
                "gradients are "
                "added up in any order where cuDNN serves them, which takes less memory and may be faster")
              .changeable(),
          field("run.algorithm_cache", section, &R::algorithm_cache, TextRule{.is_path = true},
                "folder that stores which algorithms of GPU matrix products were fastest; the choice decides bits; "
                "auto: gptrain in the user's cache folder; none: they are timed in each run; a resumed run uses those "
                "in its checkpoint")
              .changeable(),
          field("run.max_skipped_steps", section, &R::max_skipped_steps, IntegerRule{0, 1'000'000, {}},
                "non-finite steps in a row that are skipped; one more ends the run")
              .changeable(),
          field("run.rollback", section, &R::rollback, ObjectRule{rollback_keys},
                "when the loss spikes, the run goes back to the last checkpoint before the spike and leaves the next "
                "samples out; {}: never")
              .usually(R"({"spike": 4.0, "window": 100, "skip_samples": 4096})")
              .only_with({"checkpoint.every_steps",
                          "checkpoint.every_steps or checkpoint.every_seconds is greater than 0",
                          when(&RunConfig::checkpoint,
                               [](const CheckpointConfig& checkpoint) { return checkpoint.saves_on_the_way(); })})
              .changeable(),
          field("run.validate_every_steps", section, &R::validate_every_steps, IntegerRule{0, max_steps, {}},
                "steps from one validation to the next; 0: at the end only")
              .only_with(validation)
              .changeable(),
          field("run.validation_samples", section, &R::validation_samples, IntegerRule{1, 1 << 30, {}},
                "sequences per validation")
              .only_with(validation)
              .changeable(),
          field("run.validate_ema", section, &R::validate_ema, BooleanRule{},
                "validate the average of the weights that optimizer.ema keeps, not the weights themselves")
              .only_with(
                  {"optimizer.ema", "optimizer.ema is greater than 0 and data.validation names a source",
                   [](const RunConfig& config) { return config.optimizer.ema > 0 && !config.data.validation.empty(); }})
              .changeable(),
          field("run.sample_every_steps", section, &R::sample_every_steps, IntegerRule{0, max_steps, {}},
                "steps between two texts that the model writes into samples.jsonl and the report; 0: none")
              .changeable(),
          field("run.sample_tokens", section, &R::sample_tokens, IntegerRule{1, 1 << 20, {}},
                "tokens of each text that the model writes")
              .only_with(samples)
              .changeable(),
          field("run.sample_prompt", section, &R::sample_prompt, TextRule{.may_be_empty = true},
                "beginning of each text that the model writes")
              .usually(R"("The ")")
              .only_with(samples)
              .changeable(),
      });
}

std::vector<Field> make_table() {
  std::vector<Field> table;
  add_model_fields(table);
  add_data_and_batch(table);
  add_parallel_and_precision(table);
  add_optimizer_fields(table);
  add_lr_curve(table);
  add_memory_fields(table);
  add_checkpoint_log_comm(table);
  add_run(table);
  for (Field& row : table) {
    if (row.example.empty()) row.example = json_text(row.get(RunConfig{}));
  }
  return table;
}

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> table = make_table();
  return table;
}

const Field* find_field(std::string_view path) {
  static const std::map<std::string_view, const Field*> by_path = [] {
    std::map<std::string_view, const Field*> rows;
    for (const Field& row : fields()) rows.emplace(row.path, &row);
    return rows;
  }();
  const auto found = by_path.find(path);
  return found == by_path.end() ? nullptr : found->second;
}

Json value_of(std::string_view path, const StepConfig& config) {
  RunConfig whole;
  static_cast<StepConfig&>(whole) = config;
  return find_field(path)->get(whole);
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const Field& row : fields()) {
    if (names.empty() || names.back() != row.section()) names.push_back(row.section());
  }
  return names;
}

}  // namespace gptrain::config
