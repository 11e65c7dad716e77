#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/output.h"
#include "base/output_file.h"
#include "cli/commands.h"
#include "cli/option_checks.h"
#include "cli/plan_words.h"
#include "config/load.h"
#include "planner/layouts.h"
#include "planner/link_methods.h"
#include "planner/published_steps.h"
#include "planner/search.h"
#include "planner/studies.h"
#include "planner/study.h"
#include "report/encoder_estimate.h"
#include "report/layout_report.h"
#include "report/plan_page.h"
#include "report/published_report.h"
#include "report/study_svg.h"

namespace gptrain::inline cli {
namespace {

struct PlanArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string target = "h100";
  std::string cluster, software;
  std::string objective = "time";
  std::string out, html, svg;
  SearchOptions search{.gpus = 0};  // 0: not given
  std::string fit, family = "gpt", estimate, scale, links;
  std::vector<std::string> optimizers = {"adamw"};
  std::vector<std::string> sweep;
  bool methods = false, json = false;
};

// Returns the machine with which a search plans, and the dry run of its winner too (dry_run_of).
Machine machine_for(const PlanArguments& arguments, const std::string& target, int64_t gpus) {
  Machine machine = machine_named({target, arguments.cluster, arguments.software}, true);
  require_links(machine, gpus);
  return machine;
}

// Throws Error(usage) if the machine is a measured one, without nodes or one device per rank.
void require_nodes(const Machine& machine, const std::string& option, std::string_view what) {
  if (machine.cluster.measured)
    throw Error(ExitCode::usage, "{}: {} is one machine, {}; name the device of a cluster with --target", option,
                machine.device.name, what);
}

void write_file(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

std::string stem_of(const PlanArguments& arguments) { return std::filesystem::path(arguments.config).stem().string(); }

// Upper limit of --gpus: more than any machine has, few enough to list the ranks of a group.
constexpr int64_t most_gpus = int64_t{1} << 17;

int64_t at_most_all(std::string_view option, int64_t gpus) {
  if (gpus > most_gpus) throw Error(ExitCode::usage, "{} {}: must be at most {}", option, gpus, most_gpus);
  return gpus;
}

int64_t require_gpus(const PlanArguments& arguments) {
  if (arguments.search.gpus == 0) throw Error(ExitCode::usage, "--gpus is missing: the number of devices to plan for");
  return at_most_all("--gpus", arguments.search.gpus);
}

void print_study(const PlanArguments& arguments, const Study& study) {
  const bool has_result = std::any_of(study.points.begin(), study.points.end(),
                                      [](const StudyPoint& point) { return point.result.has_value(); });
  if (!has_result) throw Error(ExitCode::usage, "none of the configs can be planned: {}", study.points.front().refused);
  if (!arguments.html.empty()) write_file(arguments.html, study_page(study.title, study));
  if (!arguments.svg.empty()) write_file(arguments.svg, study_svg(study));
  arguments.json ? write_json(study_json(study)) : write_out(study_text(study));
}

constexpr std::string_view elastic_key = "parallel.elastic";

// The keys set by --set, with their values.
std::vector<std::pair<std::string, std::string>> settings_of(const PlanArguments& arguments) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (const std::string& text : arguments.overrides) {
    const size_t equals = std::min(text.find('='), text.size());
    const std::string key = text.substr(0, equals);
    std::erase_if(settings, [&](const auto& earlier) { return earlier.first == key; });
    settings.emplace_back(key, text.substr(std::min(equals + 1, text.size())));
  }
  return settings;
}

// Sets parallel.elastic to false, whatever the file says: a plan uses all devices. Throws Error(usage) if --set or
// --sweep asks for it.
void plan_all_devices(PlanArguments& arguments) {
  constexpr std::string_view rule = "a plan uses all devices and cannot be elastic";
  for (const auto& [key, value] : settings_of(arguments)) {
    if (key == elastic_key && value != "false" && value != "null")
      throw Error(ExitCode::usage, "--set {}={}: {}", key, value, rule);
  }
  for (const std::string& word : arguments.sweep)
    if (word.starts_with(elastic_key)) throw Error(ExitCode::usage, "--sweep {}: {}", word, rule);
  arguments.overrides.push_back(fmt::format("{}=false", elastic_key));
}

// The --set settings that fix a value of the layout, which the search then keeps.
std::vector<std::string> held_keys(const PlanArguments& arguments) {
  std::vector<std::string> held;
  for (const auto& [key, value] : settings_of(arguments)) {
    if (layout_value(key) == nullptr || value == "null") continue;
    if (key == "parallel.layers_per_stage" && value != "[]")
      throw Error(ExitCode::usage,
                  "--set {}={}: a search spreads layers evenly, or balances them with the head, and tries no other "
                  "numbers; [] keeps them even",
                  key, value);
    held.push_back(key + "=" + value);
  }
  return held;
}

// Checks that --set memory.activation_budget has an effect. The search applies the budget to layouts with
// memory.recompute = "optimal" only. Throws Error(usage) if a budget is set and no searched layout has that value.
void require_use_of_budget(const PlanArguments& arguments) {
  const auto settings = settings_of(arguments);
  const auto value_of = [&](std::string_view key) -> std::string {
    const auto found =
        std::find_if(settings.begin(), settings.end(), [&](const auto& set) { return set.first == key; });
    if (found == settings.end() || found->second == "null") return "";
    const std::string& text = found->second;  // a word may be quoted
    return text.size() > 1 && text.front() == '"' && text.back() == '"' ? text.substr(1, text.size() - 2) : text;
  };
  const std::string budget = value_of(budget_key), recompute = value_of("memory.recompute");
  const bool is_optimal =
      (recompute.empty() && value_of("memory.recompute_interval").empty()) || recompute == "optimal";
  if (budget.empty() || (is_optimal && arguments.search.objective != Objective::memory)) return;
  throw Error(ExitCode::usage,
              "--set {}={}: has no effect: no layout in this search has memory.recompute = \"optimal\"", budget_key,
              budget);
}

bool sets_a_layout(const PlanArguments& arguments) {
  const auto settings = settings_of(arguments);
  return std::any_of(settings.begin(), settings.end(),
                     [](const auto& set) { return set.first == budget_key || layout_value(set.first) != nullptr; });
}

// Loads the config for `gpus` ranks, as its dry run does. If its own layout does not suit that number, loads it for one
// rank: the search then decides how the batch is spread over data ranks.
RunConfig load_for(const PlanArguments& arguments, int64_t gpus) {
  try {
    return load_config(arguments.config, arguments.overrides, gpus);
  } catch (const Error&) {
    return load_config(arguments.config, arguments.overrides);
  }
}

// Loads the config that a search starts from. A value that --set fixes may conflict with the config's own layout but
// not with others (parallel.sequence needs parallel.tensor > 1): the search then starts from the config without a
// layout. If that is refused too, or no layout has the value, the first fault is reported.
RunConfig load_for_search(PlanArguments& arguments, int64_t gpus) {
  try {
    return load_for(arguments, gpus);
  } catch (const Error& refused) {
    if (refused.code() != ExitCode::usage || !sets_a_layout(arguments)) throw;
    arguments.search.refused = refused.lines();
    PlanArguments without = arguments;
    for (const std::string_view key : layout_key_paths()) without.overrides.push_back(fmt::format("{}=null", key));
    without.overrides.emplace_back("memory.recompute=optimal");  // the value with which a file may set a budget
    try {
      return with_values(load_for(without, gpus), arguments.search.held);
    } catch (const Error&) {
      throw refused;
    }
  }
}

void sweep(const PlanArguments& arguments) {
  const std::vector<SweepAxis> axes = axes_of(arguments.sweep);
  for (const auto& [key, value] : settings_of(arguments)) {
    if (std::any_of(axes.begin(), axes.end(), [&](const SweepAxis& axis) { return axis.key == key; }))
      throw Error(ExitCode::usage, "--set {}={} has no effect: --sweep sets {}", key, value, key);
  }
  const int64_t gpus = require_gpus(arguments);
  const Machine machine = machine_for(arguments, arguments.target, gpus);
  print_study(arguments,
              sweep_keys(arguments.config, arguments.overrides, axes, machine, gpus, arguments.search.price));
}

void methods(const PlanArguments& arguments) {
  const int64_t gpus = require_gpus(arguments);
  const Machine machine = machine_for(arguments, arguments.target, gpus);
  print_study(arguments, compare_methods(arguments.config, arguments.overrides, machine, gpus, arguments.search.price));
}

void vary(const PlanArguments& arguments) {
  const std::vector<int64_t> nics = numbers_of("--links", arguments.links, ",", "1,2,4");
  const int64_t gpus = require_gpus(arguments);
  const Machine machine = machine_for(arguments, arguments.target, gpus);
  require_nodes(machine, "--links " + arguments.links, "which has no NICs");
  for (auto number = nics.begin(); number != nics.end(); ++number)
    if (std::find(nics.begin(), number, *number) != number)
      throw Error(ExitCode::usage, "--links {}: has the number {} twice", arguments.links, *number);
  if (gpus <= machine.cluster.gpus_per_node)
    throw Error(ExitCode::usage, "--links {}: {} devices fit into one node of {}, which has {}, and need no NIC",
                arguments.links, gpus, machine.cluster.name, machine.cluster.gpus_per_node);
  if (arguments.methods) {
    if (!arguments.svg.empty() || arguments.search.price > 0)
      throw Error(ExitCode::usage, "--svg and --price have no effect with --links and --methods together");
    return print_study(arguments, compare_link_methods(arguments.config, arguments.overrides, machine, gpus, nics));
  }
  print_study(arguments, vary_links(load_config(arguments.config, arguments.overrides, gpus), machine, gpus, nics,
                                    arguments.search.price));
}

void fit(const PlanArguments& arguments) {
  const std::vector<std::string>& optimizers = arguments.optimizers;
  for (auto word = optimizers.begin(); word != optimizers.end(); ++word)
    if (std::find(optimizers.begin(), word, *word) != word)
      throw Error(ExitCode::usage, "--optimizer: {} is given twice", *word);
  const int64_t gpus = at_most_all("--gpus", std::max<int64_t>(arguments.search.gpus, 1));
  const Machine machine = machine_for(arguments, arguments.fit, gpus);
  const FitOptions options{
      .family = arguments.family, .optimizers = optimizers, .overrides = arguments.overrides, .gpus = gpus};
  print_study(arguments, arguments.methods ? fit_methods(machine, options) : fit_models(machine, options));
}

void estimate(const PlanArguments& arguments) {
  for (const EncoderShape& shape : encoder_shapes()) {
    if (shape.name == arguments.estimate)
      return arguments.json ? write_json(encoder_json(shape)) : write_out(encoder_text(shape));
  }
}

// Predicts the published points of the file that --scale names.
void scale_published(const PlanArguments& arguments) {
  PublishedSteps steps = read_published(arguments.scale);
  predict_published(steps);
  if (!arguments.svg.empty()) write_file(arguments.svg, published_svg(steps));
  arguments.json ? write_json(published_json(steps)) : write_out(published_text(steps));
}

void scale(const PlanArguments& arguments) {
  const std::vector<int64_t> ends = numbers_of("--scale", arguments.scale, "..", "8..4096");
  if (ends.size() != 2 || ends[0] > ends[1])
    throw Error(ExitCode::usage, "--scale {}: must be two numbers, the smaller first, as in 8..4096", arguments.scale);
  at_most_all("--scale", ends[1]);
  const Machine machine = machine_for(arguments, arguments.target, ends[1]);
  require_nodes(machine, "--scale " + arguments.scale, "whose ranks share it");
  print_study(arguments,
              scale_devices(load_for(arguments, ends[0]), machine, ends[0], ends[1], arguments.search.price));
}

// Shows people at a terminal how far a search is, every two seconds.
class SearchProgress {
 public:
  void operator()(std::string_view what, int64_t done, int64_t most) {
    if (Clock::now() - shown_at_ < std::chrono::seconds(2)) return;
    shown_at_ = Clock::now();
    print_err("{}{}\n", what, most > 0 ? fmt::format(": {} of {}", done, most) : "");
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point shown_at_ = Clock::now();
};

// Returns the command that confirms the plan of a config.
std::string dry_run_of(const PlanArguments& arguments, int64_t world_size) {
  std::string command = fmt::format("--dry-run --world-size {} --target {}", world_size, arguments.target);
  if (!arguments.cluster.empty()) command += " --cluster " + arguments.cluster;
  if (!arguments.software.empty()) command += " --software " + arguments.software;
  return command;
}

void search(PlanArguments& arguments) {
  refuse_same_file({"--out", arguments.out}, {"--html", arguments.html});
  const int64_t gpus = require_gpus(arguments);
  arguments.search.held = held_keys(arguments);
  const Machine machine = machine_for(arguments, arguments.target, gpus);
  const auto objective = std::find(objective_names.begin(), objective_names.end(), arguments.objective);
  arguments.search.objective = static_cast<Objective>(objective - objective_names.begin());
  require_use_of_budget(arguments);
  if (arguments.search.objective == Objective::cost) require_nodes(machine, "--objective cost", "whose ranks share it");
  const RunConfig config = load_for_search(arguments, gpus);
  if (isatty(STDERR_FILENO) == 1) arguments.search.progress = SearchProgress();
  const LayoutSearch found = search_layouts(config, machine, arguments.search);
  std::string winner;
  if (!found.best.empty()) {
    const RunLayout& best = found.best.front().layout;
    winner = show_config(checked_layout(config, best), ConfigText::for_any_ranks);
    if (!arguments.out.empty()) {
      write_file(arguments.out,
                 fmt::format("// The best layout by {} on {} x {}. Its plan:\n// gptrain train {} {}\n{}",
                             found.objective, best.world_size(), found.machine, arguments.out,
                             dry_run_of(arguments, best.world_size()), winner));
    }
  }
  if (!arguments.html.empty())
    write_file(arguments.html, search_page("The best layout of " + stem_of(arguments), found, winner));
  arguments.json ? write_json(layout_search_json(found, winner)) : write_out(layout_search_text(found));
  if (found.best.empty())
    throw Error(ExitCode::machine, "no layout of {} fits {} x {}", arguments.config, gpus, arguments.target);
}

// A task of `gptrain plan` and the options that it takes.
struct Task {
  const char* option;  // the option that selects the task; empty: the search
  std::vector<std::string_view> options;
};
const std::vector<Task>& tasks() {
  static const std::vector<Task> all = {
      {"",
       {"CONFIG", "--gpus", "--target", "--cluster", "--software", "--objective", "--price", "--top", "--set", "--out",
        "--html", "--json"}},
      {"--sweep",
       {"CONFIG", "--gpus", "--target", "--cluster", "--software", "--price", "--set", "--html", "--svg", "--json"}},
      {"--scale", {"CONFIG", "--target", "--cluster", "--software", "--price", "--set", "--html", "--svg", "--json"}},
      {"--links",
       {"CONFIG", "--gpus", "--target", "--cluster", "--software", "--price", "--methods", "--set", "--html", "--svg",
        "--json"}},
      {"--fit", {"--gpus", "--cluster", "--family", "--optimizer", "--methods", "--set", "--html", "--json"}},
      {"--methods",
       {"CONFIG", "--gpus", "--target", "--cluster", "--software", "--price", "--set", "--html", "--json"}},
      {"--estimate", {"--json"}}};
  return all;
}

// Returns whether --scale names a file of published points.
bool is_published(std::string_view scale) { return scale.ends_with(".json"); }
bool names_published(const CLI::App& command) {
  const CLI::Option* const scale = command.get_option("--scale");
  return scale->count() > 0 && is_published(scale->as<std::string>());
}

// Returns the options of the tasks that take an option: "--sweep or --scale".
std::string tasks_with(std::string_view option) {
  std::string names;
  for (const Task& task : tasks()) {
    if (std::find(task.options.begin(), task.options.end(), option) == task.options.end()) continue;
    names += (names.empty() ? "" : " or ") + std::string(task.option);
  }
  return names;
}

// Refuses a second task and options without effect on the chosen task.
void check_options(const CLI::App& command) {
  const Task* task = &tasks().front();
  for (const Task& other : tasks()) {
    if (*other.option == '\0' || command.get_option(other.option)->count() == 0) continue;
    if (std::find(task->options.begin(), task->options.end(), other.option) != task->options.end()) continue;
    if (task != &tasks().front())
      throw Error(ExitCode::usage, "{} and {} cannot be combined: give one of them", task->option, other.option);
    task = &other;
  }
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || name == task->option) continue;
    if (std::find(task->options.begin(), task->options.end(), name) != task->options.end()) continue;
    throw Error(ExitCode::usage, "{} has no effect {}", name,
                task->option[0] == '\0' ? "without " + tasks_with(name) : fmt::format("with {}", task->option));
  }
  if (command.get_option("--methods")->count() > 0 && command.get_option("--optimizer")->count() > 0)
    throw Error(ExitCode::usage, "--optimizer has no effect with --methods, which chooses the optimizers");
  if (names_published(command)) {
    for (const char* const option : {"CONFIG", "--target", "--cluster", "--software", "--price", "--set", "--html"})
      if (command.get_option(option)->count() > 0)
        throw Error(ExitCode::usage, "{} has no effect with --scale FILE, which names machine and configs", option);
    return;
  }
  const bool needs_config = task->options.front() == "CONFIG";
  if (needs_config && command.get_option("CONFIG")->count() == 0)
    throw Error(ExitCode::usage, "CONFIG is missing: the config of the run to plan");
}

void plan(const CLI::App& command, PlanArguments& arguments) {
  refuse_same_file({"--html", arguments.html}, {"--svg", arguments.svg});
  for (const std::string& path : {arguments.out, arguments.html, arguments.svg}) {
    if (!path.empty()) check_can_write(path, ExitCode::usage);
  }
  check_options(command);
  if (!arguments.estimate.empty()) return estimate(arguments);
  if (!arguments.fit.empty()) return fit(arguments);
  plan_all_devices(arguments);
  if (!arguments.sweep.empty()) return sweep(arguments);
  if (!arguments.links.empty()) return vary(arguments);
  if (arguments.methods) return methods(arguments);
  if (is_published(arguments.scale)) return scale_published(arguments);
  if (!arguments.scale.empty()) return scale(arguments);
  search(arguments);
}

constexpr int help_column = 42;

// Returns the choices of an option in lines of the help's right column, to follow its description.
std::string in_help(const std::vector<std::string>& choices) {
  constexpr size_t screen_columns = 100;
  std::string text;
  size_t columns = screen_columns;
  for (const std::string& choice : choices) {
    columns += choice.size() + 2;
    if (columns > screen_columns) {
      text += '\n';
      columns = help_column + choice.size() + 1;
    }
    text += text.ends_with('\n') ? "" : " ";
    text += choice + (choice == choices.back() ? "" : ",");
  }
  return text;
}

}  // namespace

void add_plan_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("plan", "find the best layout of a run, or compare plans");
  auto formatter = std::make_shared<CLI::Formatter>();
  formatter->column_width(help_column);
  command->formatter(formatter);
  auto arguments = std::make_shared<PlanArguments>();
  command->add_option("CONFIG", arguments->config, "run config (JSON)");
  command->add_option("--gpus", arguments->search.gpus, "number of devices to plan for")
      ->check(whole_number_from(1))
      ->type_name("N");
  command->add_option("--target", arguments->target, "device such as a100-80g, or a profile (default: h100)")
      ->check(some_text())
      ->type_name("NAME");
  command->add_option("--cluster", arguments->cluster, "cluster such as dgx-h100, or profile (default: device's)")
      ->check(some_text())
      ->type_name("NAME");
  command->add_option("--software", arguments->software, "software to predict, such as nemo (default: gptrain)")
      ->check(some_text())
      ->type_name("NAME");
  command->add_option("--objective", arguments->objective, "least time (default), memory, or cost on up to N devices")
      ->check(CLI::IsMember({"time", "memory", "cost"}))
      ->type_name("WORD");
  command->add_option("--price", arguments->search.price, "price of a device-hour")
      ->check(positive_number())
      ->type_name("P");
  command->add_option("--top", arguments->search.top, "number of layouts to print (default: 10)")
      ->check(whole_number_from(1))
      ->type_name("K");
  command->add_option("--set", arguments->overrides, "set a config key, which a search keeps; repeatable")
      ->type_name("key.path=value")
      ->allow_extra_args(false);
  command->add_option("--out", arguments->out, "write the best layout's config")->check(some_text())->type_name("FILE");
  command->add_option("--html", arguments->html, "write an HTML page")->check(some_text())->type_name("FILE");
  command->add_option("--svg", arguments->svg, "write a picture of --sweep, --scale or --links")
      ->check(some_text())
      ->type_name("FILE");
  command->add_flag("--json", arguments->json, "print JSON");
  command->add_option("--sweep", arguments->sweep, "compare values of KEY; given twice: each pair of values")
      ->check(some_text())
      ->type_name("KEY=V,...")
      ->allow_extra_args(false);
  command->add_flag("--methods", arguments->methods, "compare methods that save memory, or with --links traffic");
  command->add_option("--scale", arguments->scale, "compare N, 2N, ... M devices; FILE: published steps")
      ->check(some_text())
      ->type_name("N..M|FILE");
  command->add_option("--links", arguments->links, "compare these numbers of NICs per node, each at 3 rates")
      ->check(some_text())
      ->type_name("N,...");
  command->add_option("--fit", arguments->fit, "find the largest models that fit (default: --gpus 1)")
      ->check(some_text())
      ->type_name("DEVICE");
  command->add_option("--family", arguments->family, "models to fit: gpt or llama (default: gpt)")
      ->check(CLI::IsMember({"gpt", "llama"}))
      ->type_name("NAME");
  const std::vector<std::string> optimizers(optimizer_names.begin(), optimizer_names.end());
  command
      ->add_option("--optimizer", arguments->optimizers,
                   "optimizers of the models to fit (default: adamw)" + in_help(optimizers))
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(optimizers).description(""))
      ->type_name("NAME,...");
  command
      ->add_option("--estimate", arguments->estimate,
                   "parameters and FLOPs of a model that gptrain cannot train" + in_help(encoder_names()))
      ->check(CLI::IsMember(encoder_names()).description(""))
      ->type_name("MODEL");
  set_examples(command, {"gptrain plan configs/gpt2-124m.json --gpus 8 --target a100-80g --out best.json",
                         "gptrain plan --fit h100 --optimizer adamw,adafactor"});
  command->callback([arguments, command] { plan(*command, *arguments); });
}

}  // namespace gptrain::cli
