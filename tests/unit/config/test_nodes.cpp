// Communication by node: how ranks lie on nodes, the choice, and the rules of its keys and of codes.
#include "config/node_groups.h"
#include "support.h"

namespace gptrain::config_test {
namespace {

ParallelConfig mesh_of(int64_t tensor, int64_t context, int64_t pipeline) {
  ParallelConfig parallel;
  parallel.tensor = tensor;
  parallel.context = context;
  parallel.pipeline = pipeline;
  return parallel;
}

// Returns the config after the choice for ranks on nodes of `ranks_per_node`. `faster`: prediction for sums by node.
RunConfig chosen(const Overrides& overrides, int64_t ranks, int64_t ranks_per_node, bool faster = true) {
  Overrides all = {"batch.micro=2"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  RunConfig config = parse(all, base, ranks);
  choose_hierarchy(config, ranks, ranks_per_node, [&](const NodeSplit&) { return faster; });
  return config;
}

int64_t of_node(const Overrides& overrides, int64_t ranks, int64_t ranks_per_node, bool faster = true) {
  return chosen(overrides, ranks, ranks_per_node, faster).parallel.node_replicas.dense;
}

std::string refused_choice(const Overrides& overrides, int64_t ranks, int64_t ranks_per_node) {
  try {
    chosen(overrides, ranks, ranks_per_node);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::usage);
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("gathers in codes and alternating factors are refused where they would do nothing") {
  CHECK(
      fault({R"(comm.compression={"kind":"topk","alternate":true})"}) ==
      "comm.compression = {...}: of kind \"topk\" cannot alternate: only kind \"powersgd\" sums two factors (try {})");
  CHECK(
      fault({"comm.weights=int8", "parallel.zero=2", "precision.compute=bf16"}) ==
      "comm.weights = \"int8\": needs parallel.zero = 3, which gathers weights for each pass (parallel.zero = 2) (try "
      "\"as-is\")");
  CHECK(fault({"comm.weights=int8", "parallel.zero=3"}) ==
        "comm.weights = \"int8\": needs precision.compute = \"bf16\" or \"bf16-pure\" (precision.compute = \"fp32\") "
        "(try \"as-is\")");
  CHECK(fault({"comm.weights=int8", "parallel.zero=3", "precision.compute=fp16", "run.device=auto"})
            .find("precision.compute = \"fp16\"") != std::string::npos);
  CHECK(fault({"comm.weights=int8", "parallel.zero=3", "precision.compute=bf16", "run.device=cuda"}) ==
        "run.device = \"cuda\": cannot be cuda with comm.weights = \"int8\", which was not tested on the CUDA backend "
        "yet (try \"cpu\")");
}

TEST_CASE("data ranks lie on nodes as the order of ranks says") {
  CHECK(split_of_replicas(mesh_of(1, 1, 1), 8, 4) == NodeSplit{4, 2});
  CHECK(split_of_replicas(mesh_of(1, 1, 1), 8, 0) == NodeSplit{8, 1});
  CHECK(split_of_replicas(mesh_of(1, 1, 1), 8, -1) == NodeSplit{});  // unlike nodes
  CHECK(split_of_replicas(mesh_of(1, 1, 1), 8, 3) == NodeSplit{});
  CHECK(split_of_replicas(mesh_of(2, 1, 1), 16, 8) == NodeSplit{4, 2});
  CHECK(split_of_replicas(mesh_of(8, 1, 1), 16, 8) == NodeSplit{1, 2});
  CHECK(split_of_replicas(mesh_of(8, 1, 1), 16, 4) == NodeSplit{});  // a tensor group spans nodes
  CHECK(split_of_replicas(mesh_of(1, 2, 1), 8, 4) == NodeSplit{4, 2});
  CHECK(split_of_replicas(mesh_of(1, 2, 1), 8, 2) == NodeSplit{2, 4});
  // Stages of six data ranks, and of two, on nodes of four ranks.
  CHECK(split_of_replicas(mesh_of(1, 1, 2), 12, 4) == NodeSplit{});
  CHECK(split_of_replicas(mesh_of(1, 1, 4), 8, 4) == NodeSplit{2, 1});
  ParallelConfig between = mesh_of(1, 1, 2);
  between.rank_order = RankOrder::tensor_pipeline_data;
  CHECK(split_of_replicas(between, 16, 8) == NodeSplit{4, 2});
  CHECK(split_of_replicas(between, 16, 2) == NodeSplit{1, 8});
  ParallelConfig experts = mesh_of(1, 1, 1);
  experts.expert = 2;
  CHECK(split_of_expert_replicas(experts, 16, 8) == NodeSplit{4, 2});
  experts.expert = 8;
  CHECK(split_of_expert_replicas(experts, 16, 8) == NodeSplit{1, 2});
  experts.pipeline = 2;
  experts.rank_order = RankOrder::tensor_pipeline_data;
  CHECK(split_of_expert_replicas(experts, 32, 8) == NodeSplit{});
}

TEST_CASE("ranks communicate by node if that is asked for or predicted to be faster, and several nodes have several") {
  CHECK(of_node({}, 8, 4) == 4);
  CHECK(of_node({}, 8, 4, false) == 0);
  CHECK(chosen({}, 8, 4).comm.hierarchy == CommHierarchy::node);
  CHECK(chosen({}, 8, 4, false).comm.hierarchy == CommHierarchy::automatic);
  CHECK(of_node({"comm.hierarchy=flat"}, 8, 4) == 0);
  CHECK(of_node({"comm.hierarchy=node"}, 8, 4, false) == 4);
  CHECK(of_node({"comm.hierarchy=node"}, 8, 0) == 0);   // one node
  CHECK(of_node({"comm.hierarchy=node"}, 8, 1) == 0);   // one rank each
  CHECK(of_node({"comm.hierarchy=node"}, 8, -1) == 0);  // unlike nodes
  CHECK(of_node({"comm.ranks_per_node=2"}, 8, 4) == 2);
  CHECK(of_node({R"(parallel.local_steps={"islands":2,"every":10})"}, 8, 4) == 0);
  const RunConfig copied = chosen({"parallel.zero=1", "parallel.zero_node_copy=true"}, 8, 4, false);
  CHECK(copied.parallel.node_replicas.dense == 4);
  CHECK_FALSE(copied.parallel.sums_by_node());
  CHECK(hierarchy_text(copied, 8) ==
        "data ranks cut their state within nodes and copy it between them: 4 on each of 2 nodes");
  CHECK(hierarchy_text(chosen({}, 8, 4), 8) == "data ranks communicate by node: 4 on each of 2 nodes");
  CHECK(hierarchy_text(chosen({}, 8, 0), 8).empty());
  CHECK(hierarchy_text(chosen({"comm.hierarchy=node"}, 8, 1), 8) ==
        "data ranks communicate flat, as not several nodes have equally many of them, at least two each");
}

TEST_CASE("a copy of the state on each node is refused where nodes have no data ranks to share it") {
  const Overrides copies = {"parallel.zero=1", "parallel.zero_node_copy=true"};
  const std::string before =
      "parallel.zero_node_copy = true: needs several nodes with equally many of the ranks that hold the same "
      "parameters, at least two each, but ";
  const std::string after = " (try false; comm.ranks_per_node says which ranks count as a node)";
  CHECK(refused_choice(copies, 8, 0) == before + "all are on one node" + after);
  CHECK(refused_choice(copies, 8, 1) == before + "each node has one" + after);
  CHECK(refused_choice(copies, 8, 3) == before + "they lie otherwise" + after);
  CHECK(refused_choice(copies, 8, 4).empty());
}

TEST_CASE("sums that are compressed between nodes go by node, and are refused where nodes have no data ranks to sum") {
  const Overrides between = {R"(comm.compression={"kind":"int8","between":"nodes"})"};
  const RunConfig config = chosen(between, 8, 4, false);
  CHECK(config.parallel.node_replicas.dense == 4);
  CHECK(config.comm.hierarchy == CommHierarchy::node);
  CHECK(ranks_of_residual(config) == 4);
  CHECK(ranks_of_residual(chosen({R"(comm.compression={"kind":"int8"})"}, 8, 4)) == 1);
  CHECK(hierarchy_text(config, 8) ==
        "data ranks communicate by node: 4 on each of 2 nodes, with gradients compressed between nodes");
  const std::string before =
      "comm.compression: between = \"nodes\": needs several nodes with equally many of the ranks that hold the same "
      "parameters, at least two each, but ";
  const std::string after = " (try \"all\"; comm.ranks_per_node says which ranks count as a node)";
  CHECK(refused_choice(between, 8, 0) == before + "all are on one node" + after);
  CHECK(refused_choice(between, 8, 1) == before + "each node has one" + after);
  CHECK(refused_choice(between, 8, 3) == before + "they lie otherwise" + after);
  CHECK(fault({between.front(), "comm.hierarchy=flat"}) ==
        "comm.hierarchy = \"flat\": must be \"auto\" or \"node\" if comm.compression works between nodes (try "
        "\"auto\")");
  for (const std::string kind : {"powersgd", "topk", "sketch"})
    CHECK(fault({R"(comm.compression={"between":"nodes","kind":")" + kind + "\"}"}) ==
          "comm.compression = {...}: of kind \"" + kind +
              "\" needs between = \"all\": between nodes a rank sums a share of each layer, not whole matrices (try "
              "{\"kind\": \"int8\", \"between\": \"nodes\"})");
}

TEST_CASE("keys of communication by node are refused where they have no effect or no rule") {
  CHECK(fault({"parallel.zero_node_copy=true"}) ==
        "parallel.zero_node_copy = true: has no effect unless parallel.zero is greater than 0 (try --set "
        "parallel.zero_node_copy=null or leaving it out)");
  CHECK(fault({"comm.hierarchy=flat", "comm.ranks_per_node=2"}) ==
        "comm.ranks_per_node = 2: has no effect with comm.hierarchy = \"flat\" (try 0)");
  CHECK(refusal(base, {"comm.hierarchy=node", R"(parallel.local_steps={"islands":2,"every":10})"}, 2) ==
        "comm.hierarchy = \"node\": must be \"auto\" or \"flat\" with parallel.local_steps, whose islands sum by "
        "themselves "
        "(try \"auto\")");
  const auto copied = [](Overrides more) {
    more.insert(more.begin(), {"parallel.zero=1", "parallel.zero_node_copy=true"});
    return refusal(base, more, 4);
  };
  const std::string with = " with parallel.zero_node_copy";
  CHECK(copied({"batch.micro=4"}).empty());
  CHECK(copied({"batch.micro=4", "comm.hierarchy=node"}) ==
        "comm.hierarchy = \"node\": has no effect" + with + ", which sums by node already (try \"auto\")");
  CHECK(copied({"batch.micro=4", "optimizer.type=lamb"}) ==
        "optimizer.type = \"lamb\": must be adamw, adamw-8bit, lion or sgd" + with + " (try \"adamw\")");
  CHECK(copied({"batch.micro=4", "precision.reduce=bf16"}) ==
        "precision.reduce = \"bf16\": must be \"fp32\"" + with + " (try \"fp32\")");
  CHECK(copied({"batch.micro=4", "precision.compute=bf16-pure", "precision.gradients=bf16"})
            .find("precision.gradients = \"bf16\": must be \"fp32\"" + with) != std::string::npos);
  CHECK(copied({"batch.micro=4", R"(comm.compression={"kind":"int8"})"}) ==
        "comm.compression = {...}: must be {}" + with + " (try {})");
  CHECK(copied({"batch.micro=4", "model.bias=false", R"(model.moe={"experts":4,"top_k":2})", "parallel.expert=2"})
            .find("parallel.expert = 2: must be 1" + with) != std::string::npos);
  CHECK(copied({"batch.micro=4", R"(parallel.local_steps={"islands":2,"every":10})"})
            .find("parallel.local_steps = {...}: must be {}" + with) != std::string::npos);
  CHECK(copied({"batch.micro=4", "memory.offload_optimizer=disk", "memory.disk_path=/x"})
            .find("memory.offload_optimizer = \"disk\": must be \"none\"" + with) != std::string::npos);
}

}  // namespace gptrain::config_test
