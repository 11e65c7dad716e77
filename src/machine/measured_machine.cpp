#include "machine/measured_machine.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "base/enum_array.h"
#include "base/json.h"
#include "ops/footprint.h"
#include "ops/op_table.h"

namespace gptrain::inline machine {
namespace {

constexpr EnumArray<NormKind, std::string_view, 2> norm_names = {"layernorm", "rmsnorm"};
constexpr std::array<std::string_view, 2> query_key_names = {"rotary", "norm"};
// Collectives with tables of their own, and the hand-over to a lane. Other operations use one of these tables.
constexpr std::array<std::string_view, 7> measured_links = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                                            "broadcast",  "send",           hand_over_key};

DType table_dtype(DType dtype) { return dtype == DType::f32 ? DType::f32 : DType::bf16; }

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t first = 0; first <= text.size();) {
    const size_t end = std::min(text.find(' ', first), text.size());
    words.push_back(text.substr(first, end - first));
    first = end + 1;
  }
  return words;
}

// Writes one figure or table on a line.
std::string figure_line(std::string_view key, const nlohmann::ordered_json& value, std::string_view source) {
  return fmt::format("\"{}\": {}", key, json_text(nlohmann::ordered_json::array({value, source})));
}

double rounded(double value) { return std::stod(fmt::format("{:.4g}", value)); }

std::string object_text(const std::vector<std::string>& lines, int depth) {
  std::string text = "{";
  for (size_t i = 0; i < lines.size(); ++i)
    text += fmt::format("{}\n{:{}}{}", i > 0 ? "," : "", "", 2 * (depth + 1), lines[i]);
  return text + fmt::format("\n{:{}}}}", "", 2 * depth);
}

std::string named(std::string_view key, const std::string& text) { return fmt::format("\"{}\": {}", key, text); }

std::string tables_text(const RateTables& tables, std::string_view source, int depth) {
  std::vector<std::string> lines;
  for (const auto& [key, table] : tables) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (std::vector<double> row : table.rows()) {
      row.back() = rounded(row.back());
      rows.push_back(row);
    }
    lines.push_back(figure_line(key, rows, source));
  }
  return object_text(lines, depth);
}

RateTables read_links(ProfileReader& reader, const std::string& path) {
  RateTables tables;
  for (const std::string& name : reader.keys(path)) {
    if (std::find(measured_links.begin(), measured_links.end(), name) == measured_links.end())
      continue;  // reader.finish() reports the unknown key
    const auto rows = reader.table(path + "." + name, 1);
    if (!rows.empty()) tables.emplace(name, RateTable(RateTable::Kind::seconds, rows));
  }
  if (tables.empty()) reader.add_fault(path, "names no collective");
  return tables;
}

constexpr std::string_view with_bias = "bias";
constexpr std::string_view with_softcap = "softcap";

// Whether the op computes a bias's gradient too. Beside its factors it moves the weights' gradient once or twice, and
// the gradient of the bias, which has the size of one row.
bool sums_bias(const Event& op) {
  if (op.name != LinearBackwardWeight::name) return false;
  const ProductShape& products = op.products;
  const int64_t factors = dtype_bytes(products.dtype) * products.k * (products.m + products.n);
  return (op.bytes_moved - factors) % (dtype_bytes(DType::f32) * products.m * products.n) != 0;
}

// Reads tables of ratios by in_step_key.
RateTables read_in_steps(ProfileReader& reader, const std::string& path) {
  RateTables tables;
  for (const std::string& key : reader.keys(path)) {
    const std::vector<std::string_view> words = words_of(key);
    std::string_view op = key;
    if (words.back() == with_bias || (words.back() == with_softcap && key.find("attention") != std::string::npos))
      op = op.substr(0, op.size() - words.back().size() - 1);
    if (sizes_of_op(op) < 2) continue;  // unknown key
    const auto rows = reader.table(path + "." + key, 1);
    if (!rows.empty()) tables.emplace(key, RateTable(RateTable::Kind::ratio, rows));
  }
  return tables;
}

MeasuredShare read_share(ProfileReader& reader, const std::string& path, int64_t ranks) {
  MeasuredShare share{.ranks = ranks,
                      .threads = reader.count(path + ".threads"),
                      .stretch = reader.figure(path + ".stretch"),
                      .between_ops_seconds = reader.figure_from_0(path + ".between_ops_seconds"),
                      .in_steps = read_in_steps(reader, path + ".in_steps")};
  if (share.stretch > 0 && share.stretch < 1) reader.add_fault(path + ".stretch", "must be at least 1");
  for (const std::string& key : reader.keys(path + ".ops")) {
    const size_t num_sizes = sizes_of_op(key);
    if (num_sizes == 0) continue;  // unknown key
    const auto rows = reader.table(path + ".ops." + key, num_sizes);
    if (!rows.empty()) share.ops.emplace(key, RateTable(table_kind(num_sizes), rows));
  }
  if (share.ops.empty()) reader.add_fault(path + ".ops", "names no op");
  return share;
}

// Returns the keys of an object, which must be numbers of ranks.
std::vector<int64_t> read_ranks(ProfileReader& reader, const std::string& path) {
  std::vector<int64_t> ranks;
  for (const std::string& key : reader.keys(path)) {
    const bool is_number = key.size() < 9 && !key.empty() && key.front() != '0' &&
                           std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (is_number) {
      ranks.push_back(std::stoll(key));
    } else {
      reader.add_fault(path + "." + key, "must be a number of ranks");
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace

OpKinds op_kinds(const ModelConfig& model) {
  return {.activation = model.activation,
          .norm = model.norm,
          .norms_query_key = model.qk_norm,
          .caps_scores = model.attention_softcap > 0,
          .caps_logits = model.logit_softcap > 0};
}

std::string op_key(std::string_view name, DType compute, const OpKinds& kinds) {
  std::string key = fmt::format("{} {}", dtype_name(table_dtype(compute)), name);
  if (name.starts_with("activation")) key += fmt::format(" {}", activation_names[kinds.activation]);
  if (name.starts_with("norm_")) key += fmt::format(" {}", norm_names[kinds.norm]);
  if (name.starts_with("query_key")) key += fmt::format(" {}", query_key_names[kinds.norms_query_key ? 1 : 0]);
  if (name.starts_with("cross_entropy") && kinds.caps_logits) key += fmt::format(" {}", with_softcap);
  return key;
}

std::string in_step_key(const Event& op, const OpKinds& kinds) {
  std::string key = op_key(op.name, op.products.dtype);
  if (sums_bias(op)) key += fmt::format(" {}", with_bias);
  if (op.name.starts_with("attention") && kinds.caps_scores) key += fmt::format(" {}", with_softcap);
  return key;
}

size_t sizes_of_op(std::string_view key) {
  const std::vector<std::string_view> words = words_of(key);
  const auto is_one_of = [](const auto& names, std::string_view word) {
    return std::find(names.begin(), names.end(), word) != names.end();
  };
  if (words.size() < 2 || (words[0] != dtype_name(DType::f32) && words[0] != dtype_name(DType::bf16))) return 0;
  if (!is_one_of(op_names, words[1])) return 0;
  const auto has_kind_of = [&](std::string_view op, const auto& names) {
    return words[1].starts_with(op) && words.size() == 3 && is_one_of(names, words[2]);
  };
  const bool has_kind = has_kind_of("activation", activation_names) || has_kind_of("norm_", norm_names) ||
                        has_kind_of("query_key", query_key_names);
  const bool needs_kind =
      words[1].starts_with("activation") || words[1].starts_with("norm_") || words[1].starts_with("query_key");
  const bool capped = words[1].starts_with("cross_entropy") && words.size() == 3 && words[2] == with_softcap;
  if (needs_kind ? !has_kind : words.size() != 2 && !capped) return 0;
  if (words[1].starts_with("linear") || words[1].starts_with("grouped_linear")) return 3;
  return words[1].starts_with("attention") ? 2 : 1;
}

RateTable::Kind table_kind(size_t num_sizes) {
  return num_sizes > 1 ? RateTable::Kind::rate : RateTable::Kind::seconds;
}

RankShare share_of_rank(const MeasuredMachine& machine, int64_t ranks, int64_t threads) {
  const auto distance = [&](const MeasuredShare& share) {
    return std::abs(std::log(static_cast<double>(share.threads) / static_cast<double>(threads)));
  };
  const auto nearest = std::min_element(machine.shares.begin(), machine.shares.end(),
                                        [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  const double part = static_cast<double>(nearest->threads) / static_cast<double>(machine.cores);
  RankShare of_rank{.share = &*nearest,
                    .factor = nearest->stretch,
                    .f32_flops = part * machine.f32_flops,
                    .half_flops = part * machine.half_flops};
  if (!machine.is_cpu) return of_rank;  // each rank has a device of its own
  const double turns = static_cast<double>(ranks * threads) / static_cast<double>(machine.cores);
  of_rank.factor *= std::max(1.0, turns) * static_cast<double>(nearest->threads) / static_cast<double>(threads);
  return of_rank;
}

std::vector<double> product_sizes(const ProductShape& products) {
  const auto k = static_cast<double>(products.k);
  if (products.kind == ProductShape::Kind::plain)
    return {static_cast<double>(products.m), static_cast<double>(products.n), k};
  return {static_cast<double>(executed_length(products.n)), k};
}

double best_product_rate(const MeasuredMachine& machine, DType dtype) {
  double best = 0;
  for (const MeasuredShare& share : machine.shares) {
    const double all_cores = static_cast<double>(machine.cores) / static_cast<double>(share.threads);
    for (const auto& [key, table] : share.ops) {
      if (table.num_sizes() == 1 || !key.starts_with(dtype_name(table_dtype(dtype)))) continue;
      for (const std::vector<double>& row : table.rows()) best = std::max(best, all_cores * row.back());
    }
  }
  return best;
}

std::optional<double> measured_op_seconds(const RankShare& share, const Event& op, DType compute,
                                          const OpKinds& kinds) {
  const ProductShape& products = op.products;
  const bool has_products = products.kind != ProductShape::Kind::none;
  const RateTables& tables = share.share->ops;
  const auto found = tables.find(op_key(op.name, has_products ? products.dtype : compute, kinds));
  if (found == tables.end()) return std::nullopt;
  const RateTable& table = found->second;
  if (!has_products) return share.factor * table.at({static_cast<double>(op.bytes_moved)});
  const auto flops = static_cast<double>(op.executed_flops);
  const auto in_steps = share.share->in_steps.find(in_step_key(op, kinds));
  const double longer = in_steps == share.share->in_steps.end() ? 1 : in_steps->second.at({flops});
  const double limit = products.dtype == DType::f32 ? share.f32_flops : share.half_flops;
  const double rate = table.at(product_sizes(products)) / longer;
  return share.factor * flops / (limit > 0 ? std::min(rate, limit) : rate);
}

double measured_collective_seconds(const MeasuredMachine& machine, LinkWay way, int64_t ranks, int64_t world,
                                   Operation operation, double bytes) {
  if (ranks <= 1) return 0;
  const std::map<int64_t, RateTables>& links = machine.links[way];
  std::string_view name = operation_name(operation);
  if (operation == Operation::receive) name = "send";
  if (operation == Operation::all_to_all_v) name = "all_to_all";
  if (operation == Operation::barrier) name = "all_reduce";
  // Uses the next larger group that was measured, or else the largest. Beyond that, time grows in proportion to the
  // ranks, since each passes its data through the memory.
  auto nearest = links.lower_bound(ranks);
  if (nearest == links.end()) nearest = std::prev(nearest);
  const auto table = nearest->second.find(name);
  if (table == nearest->second.end()) return 0;
  const double more = std::max(1.0, static_cast<double>(ranks) / static_cast<double>(nearest->first));
  // Groups that communicate at the same time share the cores.
  const auto groups = static_cast<double>(world) / static_cast<double>(ranks);
  const double turns = machine.is_cpu ? static_cast<double>(world) / static_cast<double>(machine.cores) : 1;
  const auto hand_over = nearest->second.find(hand_over_key);
  return table->second.at({std::max(bytes, 1.0)}) * more * std::max(1.0, std::min(groups, turns)) +
         (hand_over == nearest->second.end() ? 0 : hand_over->second.at({1}));
}

std::string machine_text(const MeasuredMachine& machine, std::string_view source) {
  const auto line = [&](std::string_view key, double value) { return figure_line(key, rounded(value), source); };
  std::vector<std::string> rates = {named("f32", object_text({line("flops_per_second", machine.f32_flops)}, 2))};
  if (machine.half_flops > 0)
    rates.push_back(named("half", object_text({line("flops_per_second", machine.half_flops)}, 2)));
  std::vector<std::string> shares;
  for (const MeasuredShare& share : machine.shares) {
    shares.push_back(named(std::to_string(share.ranks),
                           object_text({figure_line("threads", share.threads, source), line("stretch", share.stretch),
                                        line("between_ops_seconds", share.between_ops_seconds),
                                        named("ops", tables_text(share.ops, source, 3)),
                                        named("in_steps", tables_text(share.in_steps, source, 3))},
                                       2)));
  }
  std::vector<std::string> ways;
  for (size_t way = 0; way < num_link_ways; ++way) {
    std::vector<std::string> groups;
    for (const auto& [ranks, tables] : machine.links[way])
      groups.push_back(named(std::to_string(ranks), tables_text(tables, source, 3)));
    if (!groups.empty()) ways.push_back(named(link_way_names[way], object_text(groups, 2)));
  }
  std::vector<std::string> parts = {
      named("name", json_text(nlohmann::json(machine.name))),
      named("kind", machine.is_cpu ? "\"cpu\"" : "\"gpu\""),
      figure_line("cores", machine.cores, source),
      named("memory", object_text({figure_line("bytes", machine.memory_bytes, source),
                                   line("bytes_per_second", machine.bytes_per_second)},
                                  1)),
      named("products", object_text(rates, 1)),
      named("host", object_text({line("bytes_per_second", machine.host_bytes_per_second)}, 1)),
      named("storage", object_text({line("bytes_per_second", machine.storage_bytes_per_second)}, 1)),
      line("slow_down_beside_traffic", machine.slow_down_beside_traffic),
      named("shares", object_text(shares, 1))};
  if (!machine.is_cpu) parts.push_back(figure_line("compute_capability", machine.compute_capability, source));
  if (const MeasuredDisk& disk = machine.disk; disk.read_bytes_per_second > 0) {
    std::vector<std::string> lines = {line("read_bytes_per_second", disk.read_bytes_per_second),
                                      line("write_bytes_per_second", disk.write_bytes_per_second)};
    if (disk.both_bytes_per_second > 0) lines.push_back(line("both_bytes_per_second", disk.both_bytes_per_second));
    lines.push_back(figure_line("transfer_bytes", disk.transfer_bytes, source));
    lines.push_back(figure_line("depth", disk.depth, source));
    parts.push_back(named("disk", object_text(lines, 1)));
  }
  if (!ways.empty()) parts.push_back(named("links", object_text(ways, 1)));
  return object_text(parts, 0) + "\n";
}

bool is_measured_machine(const ProfileReader& reader) { return reader.has("shares"); }

MeasuredMachine read_machine(ProfileReader& reader) {
  MeasuredMachine machine;
  machine.name = reader.word("name");
  const std::string kind = reader.word("kind");
  machine.is_cpu = kind == "cpu";
  if (!machine.is_cpu && kind != "gpu") reader.add_fault("kind", "must be cpu or gpu");
  if (!machine.is_cpu) machine.compute_capability = reader.figure("compute_capability");
  machine.cores = reader.count("cores");
  machine.memory_bytes = reader.figure("memory.bytes");
  machine.bytes_per_second = reader.figure("memory.bytes_per_second");
  machine.f32_flops = reader.figure("products.f32.flops_per_second");
  if (reader.has("products.half")) machine.half_flops = reader.figure("products.half.flops_per_second");
  machine.host_bytes_per_second = reader.figure("host.bytes_per_second");
  machine.storage_bytes_per_second = reader.figure("storage.bytes_per_second");
  if (reader.has("disk")) {
    machine.disk = {.read_bytes_per_second = reader.figure("disk.read_bytes_per_second"),
                    .write_bytes_per_second = reader.figure("disk.write_bytes_per_second"),
                    .both_bytes_per_second =
                        reader.has("disk.both_bytes_per_second") ? reader.figure("disk.both_bytes_per_second") : 0,
                    .transfer_bytes = reader.count("disk.transfer_bytes"),
                    .depth = reader.count("disk.depth")};
  }
  machine.slow_down_beside_traffic = reader.share_from_0("slow_down_beside_traffic");
  for (const int64_t ranks : read_ranks(reader, "shares"))
    machine.shares.push_back(read_share(reader, fmt::format("shares.{}", ranks), ranks));
  if (machine.shares.empty()) reader.add_fault("shares", "is empty");
  for (const std::string& way : reader.keys("links")) {
    const auto found = std::find(link_way_names.begin(), link_way_names.end(), way);
    if (found == link_way_names.end()) continue;  // unknown key
    for (const int64_t ranks : read_ranks(reader, "links." + way)) {
      machine.links[found - link_way_names.begin()].emplace(ranks,
                                                            read_links(reader, fmt::format("links.{}.{}", way, ranks)));
    }
  }
  // Other work on the machine may have disturbed the measurement of the best rate; no table may exceed it.
  machine.f32_flops = std::max(machine.f32_flops, best_product_rate(machine, DType::f32));
  if (machine.half_flops > 0)
    machine.half_flops = std::max(machine.half_flops, best_product_rate(machine, DType::bf16));
  return machine;
}

}  // namespace gptrain::machine
