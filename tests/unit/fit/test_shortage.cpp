// Messages about runs that do not fit into memory.
#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text_parts.h"
#include "base/units.h"
#include "catch.h"
#include "fit/choose_step.h"
#include "fit/micro_batches.h"
#include "fit/plan_world.h"
#include "fit/shortage.h"
#include "fit/step_times.h"
#include "unit/named_target.h"
#include "unit/preset_fixture.h"

using namespace gptrain;
using gptrain::testing::cpu_target;
using gptrain::testing::find_target;
using gptrain::testing::preset_config;

namespace {

// Returns the message of a dry run.
std::string shortage_of(const RunConfig& config, const Target& target, int64_t world_size = 1) {
  const WorldPlan plan = plan_world({config, target, world_size});
  return memory_shortage(config, target,
                         {.largest_rank = plan.largest_rank,
                          .largest = plan.largest.arenas,
                          .on_host = plan.on_host,
                          .node_of_rank = nodes_of_ranks(world_size, target.ranks_per_node)});
}

HostMemoryUse host_of(const RunConfig& config, const Target& target, int64_t world_size = 1) {
  return fullest_host(plan_world({config, target, world_size}).on_host, make_mesh(config, world_size),
                      nodes_of_ranks(world_size, target.ranks_per_node));
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// Returns the line of a setting, or of all together, without its end; empty if there is none.
std::string whole_line_of(const std::string& text, const std::string& begin) {
  const size_t at = text.find("\n  " + begin);
  return at == std::string::npos ? "" : text.substr(at + 3, text.find('\n', at + 1) - at - 3);
}

// Returns the line's part about training and step time.
std::string price_of(const std::string& text, const std::string& begin) {
  const std::string line = whole_line_of(text, begin);
  return line.empty() ? "" : line.substr(line.rfind("; ") + 2);
}

// Returns the line up to that part.
std::string line_with(const std::string& text, const std::string& begin) {
  const std::string line = whole_line_of(text, begin);
  return line.substr(0, std::min(line.rfind("; "), line.size()));
}

}  // namespace

TEST_CASE("a plan that does not fit names what is missing and what would help") {
  const auto shortage_on = [](const RunConfig& config, Target target, int64_t gib, int64_t world_size = 1) {
    target.memory_bytes = gib << 30;
    return shortage_of(config, target, world_size);
  };
  const RunConfig config = preset_config("gpt2-1.5b");
  CHECK(shortage_on(config, cpu_target(), 1024).empty());

  const std::string shortage = shortage_on(config, cpu_target(), 30);
  CHECK(shortage.starts_with("Does not fit: "));
  for (const char* setting : {"memory.recompute = \"block\": ", "memory.recompute = \"optimal\": ",
                              "batch.micro = 1 instead of 2: ", "optimizer.type = \"adamw-8bit\": ",
                              "memory.saved_inputs = 8: ", "memory.activation_bits = 3: ", "with all but "})
    CHECK(has(shortage, setting));
  CHECK(!has(shortage, "loss_chunk_tokens"));
  CHECK(!has(shortage, "offload"));
  CHECK(!has(shortage, "parallel.zero"));
  CHECK(!has(shortage, "choose a smaller model"));
  const RunConfig wide = preset_config("gpt2-1.5b", {"batch.micro=8"});
  const std::string on_gpu = shortage_on(wide, find_target("h100"), 40);
  CHECK(has(on_gpu, "memory.loss_chunk_tokens = 2048: "));
  CHECK(has(on_gpu, "memory.offload_activations = \"all\": "));
  CHECK(price_of(on_gpu, "memory.offload_optimizer = \"host\"").starts_with("exact, a step "));
  for (const char* optimizer : {"adafactor", "lamb"}) {
    const RunConfig other = preset_config(
        "gpt2-1.5b", {"batch.micro=8", "optimizer.type=" + std::string(optimizer), "optimizer.betas=null"});
    CHECK(has(shortage_on(other, find_target("h100"), 40), "memory.offload_optimizer") == (optimizer[0] == 'l'));
  }

  // With recomputed blocks, the stage with the most memory takes more than twice rank 0's.
  const std::vector<std::string> in_a_v = {"parallel.pipeline=4", "parallel.pipeline_schedule=zero-bubble-v",
                                           "batch.global=256", "batch.micro=16"};
  RunConfig recomputing = preset_config("gpt2-1.5b", in_a_v);
  recomputing.memory.recompute = RecomputeKind::block;
  const int64_t of_all = largest_rank_bytes({recomputing, find_target("a100-40g"), 4}, 0).on_device;
  CHECK(of_all > 2 * plan_rank({recomputing, find_target("a100-40g"), 4}).memory().arenas.total());
  CHECK(has(shortage_on(preset_config("gpt2-1.5b", in_a_v), find_target("a100-40g"), 40, 4),
            fmt::format("memory.recompute = \"block\": {}; exact, ", bytes_text(of_all))));

  const std::string too_large = shortage_on(config, cpu_target(), 4);
  CHECK(has(too_large, "\"bf16-pure\": "));
  CHECK(!has(too_large, "precision.gradients"));
  CHECK(!has(too_large, "\"optimal\""));  // too large even without activations
  CHECK(has(too_large, "with all but memory.recompute = \"selective\": "));
  // A setting that saves less than 1% of the excess gets no line.
  CHECK(has(too_large, "memory.activation_bits"));
  CHECK(!has(shortage_on(preset_config("gpt3-175b", {"batch.micro=1"}), cpu_target(), 40), "memory.activation_bits"));
  for (const char* optimizer : {"adamw-8bit", "lamb"}) {
    const RunConfig pure =
        preset_config("gpt2-1.5b", {"precision.compute=bf16-pure", "optimizer.type=" + std::string(optimizer)});
    CHECK(has(shortage_on(pure, cpu_target(), 4), "precision.gradients = \"bf16\": ") == (optimizer[0] == 'a'));
  }
  CHECK(has(too_large, "choose a smaller model"));
}

TEST_CASE("settings that help say what they do to training and to the time of a step") {
  const auto text_of = [](const char* preset, const std::vector<std::string>& overrides, const char* device,
                          int64_t gib, int64_t world_size = 1) {
    Target target = find_target(device);
    target.memory_bytes = gib << 30;
    return shortage_of(preset_config(preset, overrides, world_size), target, world_size);
  };
  const std::vector<std::string> wide = {"batch.micro=8"};
  const std::string text = text_of("gpt2-1.5b", wide, "a100-80g", 40);
  const auto price = [&](const char* begin) { return price_of(text, begin); };
  const auto ratio = [&](RecomputeKind kind, OffloadChoice offloaded) {
    const RunConfig now = preset_config("gpt2-1.5b", wide);
    RunConfig then = now;
    then.memory.recompute = kind;
    then.memory.offload = offloaded;
    const Target target = find_target("a100-80g");
    return nominal_step_seconds({then, target, 1}, 0) / nominal_step_seconds({now, target, 1}, 0);
  };
  // With four micro-batches in flight, a budget for two makes the first stage recompute blocks.
  const RunConfig saves_all = preset_config("gpt2-1.5b", {"parallel.pipeline=4", "batch.global=16"}, 4);
  const Target of_four = find_target("a100-80g");
  RunConfig optimal = saves_all;
  optimal.memory.recompute = RecomputeKind::optimal;
  optimal.memory.activation_budget =
      plan_rank({with_few_micro_batches(saves_all), of_four, 4}, 0).memory().arenas[MemoryClass::activations];
  CHECK(nominal_step_seconds({optimal, of_four, 4}, 0) > 1.05 * nominal_step_seconds({saves_all, of_four, 4}, 0));
  // A block's forward is a third of its FLOPs; head and update take part of the rest.
  CHECK(ratio(RecomputeKind::block, offload::none) > 1.15);
  CHECK(ratio(RecomputeKind::block, offload::none) < 1.35);
  CHECK(price("memory.recompute = \"block\"") ==
        fmt::format("exact, a step {:.2f} times as long", ratio(RecomputeKind::block, offload::none)));
  CHECK(ratio(RecomputeKind::none, offload::all) > 2);
  CHECK(price("memory.offload_activations = \"all\"") ==
        fmt::format("exact, a step {:.2f} times as long", ratio(RecomputeKind::none, offload::all)));
  CHECK(price("memory.recompute = \"optimal\"").starts_with("exact, a step "));
  for (const char* setting : {"optimizer.type = \"adamw-8bit\"", "precision.compute = \"bf16-pure\""})
    CHECK(price(setting).starts_with("changes training, a step 0.9"));  // one micro-batch a step, a smaller update
  for (const char* setting : {"memory.saved_inputs = 8", "memory.activation_bits = 3", "with all but "})
    CHECK(price(setting).starts_with("changes training, a step 1."));
  CHECK(price("batch.micro = 4 instead of 8").starts_with("exact but for rounding, a step "));
  CHECK(price("memory.loss_chunk_tokens = 2048").starts_with("exact but for rounding, a step "));
  // GELU's tanh form uses unrounded sums if a product computes it.
  CHECK(price("memory.recompute = \"selective\"").starts_with("exact but for rounding, a step 1."));
  CHECK(price_of(text_of("llama-7b", {}, "a100-80g", 100), "memory.recompute = \"selective\"")
            .starts_with("exact, a step 1."));
  CHECK(price_of(text_of("gpt2-1.5b", {"batch.micro=8", "memory.recompute=selective"}, "a100-80g", 30),
                 "memory.recompute = \"block\"")
            .starts_with("exact but for rounding, a step 1."));

  CHECK(price("memory.recompute = \"ffn\"").empty());  // takes longer than "selective"
  const std::vector<std::string> of_long = {"batch.micro=1", "model.sequence_length=65536"};
  CHECK(price_of(text_of("llama-7b", of_long, "a100-80g", 160), "memory.recompute = \"ffn\"")
            .starts_with("exact, a step 1."));

  const std::string of_two = text_of("gpt2-1.5b", {}, "a100-80g", 20, 2);
  CHECK(price_of(of_two, "parallel.zero = 1") == "exact, a step 0.93 times as long");  // a rank updates half
  for (const char* setting : {"parallel.zero = 2", "parallel.zero = 3"})
    CHECK(price_of(of_two, setting) == "exact but for rounding, a step 0.93 times as long, but ranks exchange more");
  const std::string of_many = text_of("gpt2-1.5b", {"batch.global=1024"}, "a100-80g", 20, 2);
  CHECK(price_of(of_many, "parallel.zero = 1") == "exact, a step as long");
  CHECK(price_of(text_of("gpt2-1.5b", {"parallel.zero=2"}, "a100-80g", 15, 2), "parallel.zero = 3")
            .starts_with("exact, a step "));
}

TEST_CASE("what would help is what a plan with it takes, and nothing that does not") {
  const std::vector<std::string> overrides = {"memory.recompute=block", "batch.micro=1", "precision.compute=bf16",
                                              "batch.global=8"};
  const auto config = [&](const char* zero, const char* chunk) {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), {zero, chunk});
    return preset_config("gpt2-774m", all, 8);
  };
  Target target = find_target("h100");
  const auto peak = [&](const RunConfig& run) { return plan_rank({run, target, 8}).memory().arenas.total(); };
  const RunConfig plain = config("parallel.zero=1", "memory.loss_chunk_tokens=2048");
  const int64_t with_2 = peak(config("parallel.zero=2", "memory.loss_chunk_tokens=2048"));
  REQUIRE(with_2 < peak(plain));
  target.memory_bytes = with_2;
  const std::string text = shortage_of(plain, target, 8);
  const std::string fits = format_bytes(static_cast<double>(with_2)) + ", which fits; ";
  CHECK(text.find("parallel.zero = 2: " + fits) != std::string::npos);
  CHECK(text.find("parallel.zero = 3: ") != std::string::npos);
  CHECK(text.find("memory.recompute") == std::string::npos);
  // A chunk of more rows than a micro-batch is the micro-batch.
  const RunConfig chunked = config("parallel.zero=1", "memory.loss_chunk_tokens=4096");
  CHECK(shortage_of(chunked, target, 8) == text);
  // Ranks that share memory have a part of it each.
  target.memory_bytes = 2 * peak(plain) - 1;
  CHECK(shortage_of(plain, target, 8).empty());
  target.sharing = 2;
  CHECK(has(shortage_of(plain, target, 8), " for each of the 2 ranks that share it. "));
}

TEST_CASE("what the ranks of a machine take of its memory is weighed, where that is known") {
  const RunConfig config = preset_config("gpt2-1.5b",
                                         {"memory.offload_activations=all", "checkpoint.every_steps=5",
                                          "parallel.pipeline=2", "batch.micro=1", "batch.global=4"},
                                         4);
  const Target target = find_target("h100");
  const auto of_nodes = [&](const std::vector<int64_t>& nodes) {
    return fullest_host(plan_world({config, target, 4}).on_host, make_mesh(config, 4), nodes);
  };
  const HostMemoryUse all = of_nodes(nodes_of_ranks(4, 0));
  CHECK(all.ranks == 4);
  int64_t sum = 0;
  for (int64_t rank = 0; rank < 4; ++rank)
    sum += plan_rank({config, target, 4}, rank).memory().arenas.total(MemoryPlace::pinned_host);
  // Data ranks' shares of a checkpoint differ a little.
  CHECK(static_cast<double>(all.total()) == Approx(static_cast<double>(sum)).epsilon(1e-3));
  // The first stage has the most micro-batches in flight: its node takes the most.
  const HostMemoryUse two = of_nodes(nodes_of_ranks(4, 2));
  CHECK(two.ranks == 2);
  CHECK(2 * two.total() > all.total());
  CHECK(two.total() == 2 * plan_rank({config, target, 4}, 0).memory().arenas.total(MemoryPlace::pinned_host));

  // A launcher may deal ranks to nodes in turn: each node then has ranks of both stages.
  const HostMemoryUse dealt = of_nodes({0, 1, 0, 1});
  CHECK(dealt.ranks == 2);
  CHECK(2 * dealt.total() == all.total());

  CHECK(host_shortage(config.memory, config.batch.micro, all, 0).empty());
  CHECK(host_shortage(config.memory, config.batch.micro, all, all.total()).empty());
  const std::string text = host_shortage(config.memory, config.batch.micro, all, all.total() - (int64_t{1} << 30));
  CHECK(
      text.starts_with("Does not fit into the host's memory: 1.0 GiB are missing. The 4 ranks of the machine would "));
  const auto asked = [&](MemoryClass memory_class) {
    return format_bytes(static_cast<double>(all.bytes[static_cast<size_t>(memory_class)]));
  };
  CHECK(has(text, fmt::format("would take {} of the ", format_bytes(static_cast<double>(all.total())))));
  CHECK(has(text, "\n  " + asked(MemoryClass::offloaded) + " for memory.offload_activations; a smaller number "));
  CHECK(has(text, "\n  " + asked(MemoryClass::snapshot) + " for checkpoint.asynchronous; false "));
}

TEST_CASE("of a host's memory that is offered which the rules take") {
  const auto offered = [](const std::string& settings, const std::string& offload, const char* micro) {
    const RunConfig config = preset_config("gpt2-1.5b", {settings, "memory.offload_activations=" + offload, micro});
    Target target = find_target("h100");
    target.memory_bytes = int64_t{32} << 30;
    return host_shortage(config.memory, config.batch.micro, host_of(config, target), 1);
  };
  const std::string both = offered("memory.recompute=optimal", "optimal", "batch.micro=8");
  CHECK(has(both, " for memory.offload_activations; \"none\" takes none"));
  CHECK(has(both, " for micro-batches that are read ahead; a smaller batch.micro takes less"));
  const std::string one = offered("memory.recompute=none", "1", "batch.micro=1");
  CHECK(has(one, " for memory.offload_activations; \"none\" takes none"));
  CHECK(!has(one, "a smaller batch.micro"));
  for (const char* offload : {"2", "all"})
    CHECK(
        has(offered("memory.recompute=none", offload, "batch.micro=1"), "; a smaller number of blocks, or \"none\","));
}

TEST_CASE("what would help a device is not what the host cannot hold", "[long]") {
  Target target = find_target("h100");
  target.memory_bytes = int64_t{40} << 30;
  const std::string offload = "memory.offload_activations = \"all\": ";
  for (const int64_t ranks : {1, 4}) {
    const RunConfig config = preset_config("gpt2-1.5b", {"batch.micro=8", "batch.global=32"}, ranks);
    RunConfig offloaded = config;
    offloaded.memory.offload = offload::all;
    for (const int of_node : {0, 2}) {
      target.ranks_per_node = of_node;
      // All ranks of a node share its host.
      const int64_t node_ranks = of_node > 0 ? std::min<int64_t>(of_node, ranks) : ranks;
      const int64_t now = host_of(config, target, ranks).total(), then = host_of(offloaded, target, ranks).total();
      CHECK(then == node_ranks * host_of(offloaded, target).total());
      target.host_bytes = 0;
      const std::string line = line_with(shortage_of(config, target, ranks), offload);
      const std::string whose = node_ranks > 1 ? fmt::format(" for the {} ranks of a node", node_ranks) : "";
      CHECK(line.ends_with(fmt::format(", which fits; and {} of the host's memory{}", bytes_text(then - now), whose)));
      target.host_bytes = then;
      CHECK(line_with(shortage_of(config, target, ranks), offload) == line);
      --target.host_bytes;
      CHECK(line_with(shortage_of(config, target, ranks), offload).empty());
    }
  }
}

TEST_CASE("what a host lacks already is told of beside what would help the device") {
  const RunConfig config = preset_config("gpt2-1.5b", {"batch.micro=8", "memory.offload_activations=all"});
  Target target = find_target("h100");
  RunConfig smaller = config;
  smaller.batch = {.global = 8, .micro = 4, .accumulation = 2};
  target.memory_bytes = plan_rank({smaller, target}).memory().arenas.total();
  target.host_bytes = host_of(smaller, target).total();
  const std::string micro = "batch.micro = 4 instead of 8: ";
  CHECK(line_with(shortage_of(config, target), micro) == micro + bytes_text(target.memory_bytes) + ", which fits");
  --target.host_bytes;
  const std::string text = shortage_of(config, target);
  CHECK(line_with(text, micro) == micro + bytes_text(target.memory_bytes) + ", which fits the device but not the host");
  CHECK(text.ends_with("\n" +
                       host_shortage(config.memory, config.batch.micro, host_of(config, target), target.host_bytes)));
}

TEST_CASE("settings that a host holds one by one are not offered together where it does not") {
  // Copies of activations, and the memory in which processes receive gradient shares, are both on the host.
  Target target = find_target("h100");
  target.of_processes = true;
  target.device_links = false;
  const RunConfig config = preset_config("gpt2-1.5b", {"memory.recompute=block", "batch.micro=1"}, 8);
  target.memory_bytes = plan_rank({config, target, 8}).memory().arenas.total() - (int64_t{1} << 28);
  const std::string offload = "memory.offload_activations = \"all\"",
                    stages = "parallel.zero = 2 and parallel.zero = 1";
  const std::string text = shortage_of(config, target, 8);
  CHECK(has(text, "\n  with all but " + stages + ": "));

  RunConfig offloaded = config;
  offloaded.memory.offload = offload::all;
  target.host_bytes = host_of(offloaded, target, 8).total();
  const std::string tight = shortage_of(config, target, 8);
  for (const std::string& setting : {offload, std::string("parallel.zero = 3")})
    CHECK(line_with(tight, setting + ": ") == line_with(text, setting + ": "));
  RunConfig sharded = config;
  sharded.parallel.zero = 3;
  const int64_t more = host_of(sharded, target, 8).total() - host_of(config, target, 8).total();
  REQUIRE(more > 0);
  const std::string line = line_with(tight, "with all but " + stages + " and " + offload + ": ");
  CHECK(line.ends_with(
      fmt::format(", which fits; and {} of the host's memory for the 8 ranks of a node", bytes_text(more))));
}

TEST_CASE("offload is offered to a run that recomputation alone does not make fit", "[long]") {
  // An early stage of a deep pipeline holds the inputs of all micro-batches in flight.
  const std::vector<std::string> deep = {"parallel.pipeline=16", "batch.micro=260", "batch.global=4160",
                                         "memory.recompute=optimal", "memory.loss_chunk_tokens=2048"};
  const Target target = find_target("a100-40g");
  const RunConfig config = preset_config("gpt2-1.5b", deep, 16);
  RunConfig copied = config;
  copied.memory.offload = offload::optimal;
  REQUIRE(with_derived_values(copied, 16));
  REQUIRE(largest_rank_bytes({config, target, 16}, 0).on_device > target.memory_bytes);
  const int64_t bytes = largest_rank_bytes({copied, target, 16}, 0).on_device;
  REQUIRE(bytes <= target.memory_bytes);
  const std::string setting = "memory.offload_activations = \"optimal\"", text = shortage_of(config, target, 16);
  CHECK(line_with(text, setting + ": ").starts_with(setting + ": " + bytes_text(bytes) + ", which fits; and "));
  CHECK(has(text, "\n  with all but " + setting + ": "));  // combined with no other setting: it uses all free memory
  Target cpu = cpu_target();
  cpu.memory_bytes = target.memory_bytes;
  CHECK(shortage_of(config, cpu, 16).starts_with("Does not fit: "));
  CHECK(!has(shortage_of(config, cpu, 16), setting));

  RunConfig budgeted = config;
  budgeted.memory.activation_budget = int64_t{36} << 30;
  CHECK(!line_with(shortage_of(budgeted, target, 16), setting + ", memory.activation_budget = \"fit\": ").empty());
}

TEST_CASE("of ranks the first that lacks the most is said to, a first data rank where one does not fit") {
  MeshPoint sizes{{2, 1, 2, 2}};
  for (const RankOrder order : {RankOrder::tensor_data_pipeline, RankOrder::tensor_pipeline_data}) {
    const Mesh mesh(sizes, 8, order);
    const auto rank = [&](int64_t tensor, int64_t data, int64_t stage) {
      return mesh.rank_of({{tensor, 0, data, stage}});
    };
    std::vector<MemoryPlan> plans(8);
    std::vector<int64_t> limits(8, 100);
    const auto set = [&](int64_t of, int64_t bytes) {
      plans[static_cast<size_t>(of)][MemoryClass::activations] = bytes;
      plans[static_cast<size_t>(of)].on(MemoryPlace::pinned_host)[0] = 2 * bytes;
    };
    const auto world_memory_now = [&] { return world_memory(plans, limits, mesh, nodes_of_ranks(8, 4)); };
    for (int64_t of = 0; of < 8; ++of) set(of, 90);
    CHECK(world_memory_now().largest_rank == 0);
    set(rank(0, 0, 0), 101);
    set(rank(0, 0, 1), 120);
    set(rank(1, 0, 1), 120);
    set(rank(0, 1, 1), 121);  // e.g. the padding of a piece
    CHECK(world_memory_now().largest_rank == rank(0, 0, 1));
    CHECK(world_memory_now().largest == plans[static_cast<size_t>(rank(0, 0, 1))]);
    CHECK(world_memory_now().node_of_rank == std::vector<int64_t>{0, 0, 0, 0, 1, 1, 1, 1});
    for (const auto& [number, bytes] : {std::pair<size_t, int64_t>{0, 202}, {1, 180}, {2, 240}, {3, 240}})
      CHECK(world_memory_now().on_host.at(number)[0] == bytes);
    // Devices with less memory.
    limits[static_cast<size_t>(rank(1, 0, 0))] = 60;
    CHECK(world_memory_now().largest_rank == rank(1, 0, 0));
    limits.assign(8, 120);
    CHECK(world_memory_now().largest_rank == rank(0, 1, 1));
  }
}

TEST_CASE("bytes of a step of very many passes are nearly those of a plan, and a plan's if it is open what fits") {
  const RunConfig config = preset_config("gpt2-1.5b", {"parallel.pipeline=12", "batch.global=240", "batch.micro=1",
                                                       "parallel.pipeline_schedule=interleaved"});
  RunConfig recomputing = config;
  recomputing.memory.recompute = RecomputeKind::block;
  Target target = cpu_target();
  const int64_t bytes = largest_rank_bytes({recomputing, target, 12}, 0).on_device;
  const auto line_on = [&](int64_t device_bytes) {
    target.memory_bytes = device_bytes;
    return line_with(shortage_of(config, target, 12), "memory.recompute = \"block\"");
  };
  CHECK(line_on(bytes / 2).starts_with("memory.recompute = \"block\": ~"));
  CHECK(line_on(bytes) == fmt::format("memory.recompute = \"block\": {}, which fits", bytes_text(bytes)));
}

TEST_CASE("the largest rank is that of a plan of all stages, though stages with equal layers are planned once") {
  const Target target = find_target("a100-40g");
  for (const std::string order : {"1f1b", "gpipe", "interleaved", "zero-bubble", "zero-bubble-v"}) {
    for (const std::string recompute : {"none", "every_nth"}) {
      CAPTURE(order, recompute);
      // Stages have 7 or 8 layers, so that every_nth recomputes 3 or 4 of them.
      std::vector<std::string> settings = {
          "model.num_layers=46", "parallel.pipeline=6",           "batch.global=24",
          "batch.micro=1",       "memory.recompute=" + recompute, "parallel.pipeline_schedule=" + order};
      if (recompute == "every_nth") settings.push_back("memory.recompute_interval=2");
      const RunConfig config = preset_config("gpt2-1.5b", settings);
      const RankBytes few = largest_rank_bytes({config, target, 6}, 3);
      const WorldPlan all = plan_world({config, target, 6});
      CHECK(few.on_device == all.largest.arenas.total());
      CHECK(few.on_host == all.on_host);
    }
  }
}

TEST_CASE("the estimate of few stages is near the largest rank of all, on the device and on the host") {
  const Target target = find_target("a100-40g");
  for (const std::string order : {"1f1b", "interleaved", "zero-bubble-v"}) {
    CAPTURE(order);
    const RunConfig config =
        preset_config("gpt2-1.5b", {"parallel.pipeline=6", "batch.global=40", "batch.micro=1", "memory.recompute=block",
                                    "memory.offload_activations=all", "parallel.pipeline_schedule=" + order});
    const RankBytes all = largest_rank_bytes({config, target, 6}, 0);
    const RankBytes few = estimate_rank_bytes({config, target, 6});
    CHECK(static_cast<double>(few.on_device) / static_cast<double>(all.on_device) == Approx(1).epsilon(0.03));
    const auto nodes = nodes_of_ranks(6, 6);
    const Mesh mesh = make_mesh(config, 6);
    const auto host = [&](const RankBytes& bytes) {
      return static_cast<double>(fullest_host(bytes.on_host, mesh, nodes).total());
    };
    CHECK(host(few) / host(all) == Approx(1).epsilon(0.3));
    CHECK(host(few) > 0.97 * host(all));
  }
}
