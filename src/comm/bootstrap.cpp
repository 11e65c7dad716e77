#include "comm/bootstrap.h"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <limits>
#include <sched.h>
#include <set>
#include <sstream>
#include <string_view>
#include <sys/prctl.h>
#include <unistd.h>
#include <vector>

#include "base/error.h"
#include "base/printable.h"

namespace gptrain::inline comm {
namespace {

constexpr int lowest_job_port = 20000;  // below the ports that systems assign by themselves
constexpr int num_job_ports = 12000;
constexpr int max_ranks = 1 << 20;
constexpr int64_t first_special_step = 0xfffffff0;  // from here on Slurm's batch, external and interactive steps

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  bool has(const char* name) const {
    const char* value = environment_(name);
    return value != nullptr && *value != '\0';
  }
  std::string text(const char* name) const { return has(name) ? environment_(name) : ""; }

  int64_t number(const char* name, int64_t least, int64_t most) const {
    if (!has(name))
      throw Error(ExitCode::usage,
                  "{} is not set, although SLURM_STEP_ID is: set it, or unset SLURM_STEP_ID to start without Slurm",
                  name);
    const std::string value = text(name);
    int64_t number = 0;
    const auto [end, fault] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (fault != std::errc() || end != value.data() + value.size() || number < least || number > most)
      throw Error(ExitCode::usage, "{}={}: must be a whole number from {} to {}", name, printable(value), least, most);
    return number;
  }
  int integer(const char* name, int least, int most = std::numeric_limits<int32_t>::max()) const {
    return static_cast<int>(number(name, least, most));
  }
  int integer_or(const char* name, int fallback, int least, int most) const {
    return has(name) ? integer(name, least, most) : fallback;
  }

 private:
  const Environment& environment_;
};

// Reads rank, size and local rank from the named variables. The local ones may be unset, and `local_size` may be null.
void read_rank(const Variables& variables, Launch& launch, const char* rank, const char* size, const char* local_rank,
               const char* local_size) {
  if (!variables.has(rank) || !variables.has(size))
    throw Error(ExitCode::usage, "{} is set, but {} is not: set both or neither", variables.has(rank) ? rank : size,
                variables.has(rank) ? size : rank);
  launch.size = variables.integer(size, 1, max_ranks);
  launch.rank = variables.integer(rank, 0);
  if (launch.rank >= launch.size)
    throw Error(ExitCode::usage, "{}={}: must be below {}={}", rank, launch.rank, size, launch.size);
  launch.local_size = local_size == nullptr ? 0 : variables.integer_or(local_size, 0, 1, launch.size);
  launch.local_rank = variables.integer_or(local_rank, launch.size == 1 ? 0 : -1, 0, launch.size - 1);
  if (launch.local_size > 0 && launch.local_rank >= launch.local_size)
    throw Error(ExitCode::usage, "{}={}: must be below {}={}", local_rank, launch.local_rank, local_size,
                launch.local_size);
}

// Rank 0 takes another port where torchrun's agent serves MASTER_PORT itself, the same on all ranks.
int port_beside_agent(int port) {
  constexpr int step = 4001;
  const int beside = lowest_job_port + (port * 7 + step) % num_job_ports;
  return beside == port ? beside + 1 : beside;
}

bool is_true(const std::string& word) { return word == "True" || word == "true" || word == "1"; }

// Returns the value of MASTER_ADDR, without the brackets of "[::1]". THROWS Error(usage) if no host or address can be
// written so.
std::string master_address(const Variables& variables) {
  std::string text = variables.text("MASTER_ADDR");
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  const auto fits = [](unsigned char c) { return c > ' ' && c != 0x7f && std::strchr("[]/@,\"'", c) == nullptr; };
  if (!std::all_of(text.begin(), text.end(), fits))
    throw Error(ExitCode::usage, "MASTER_ADDR={}: must be the name or address of rank 0's host", printable(text));
  if (std::count(text.begin(), text.end(), ':') == 1)
    throw Error(ExitCode::usage, "MASTER_ADDR={}: must be a host alone: give its port as MASTER_PORT", text);
  return text;
}

void read_master(const Variables& variables, Launch& launch) {
  if (!variables.has("MASTER_ADDR"))
    throw Error(ExitCode::usage, "MASTER_ADDR is not set: with WORLD_SIZE={} it must name the host of rank 0",
                launch.size);
  if (!variables.has("MASTER_PORT"))
    throw Error(ExitCode::usage, "MASTER_PORT is not set: with WORLD_SIZE={} it must be a port that rank 0 can take",
                launch.size);
  launch.master_addresses = {master_address(variables)};
  launch.master_port = variables.integer("MASTER_PORT", 1, 65535);
  if (is_true(variables.text("TORCHELASTIC_USE_AGENT_STORE")))
    launch.master_port = port_beside_agent(launch.master_port);
  launch.job = variables.text("TORCHELASTIC_RUN_ID");
}

// Variables by which launchers of other MPIs give a process its rank.
struct OtherLauncher {
  const char* name;
  const char* rank;
  const char* size;             // null: not told
  const char* local_rank;       // null: not told, as the size
  const char* local_size;       // null: not told
  const char* nodes = nullptr;  // number of nodes; null: not told
};
constexpr OtherLauncher other_launchers[] = {
    {"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"},
    {"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", nullptr, "FLUX_JOB_NNODES"},
    {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"},
    {"MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Platform MPI", "MPI_RANKID", "MPI_NRANKS", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Horovod", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"},
    {"a launcher with PMI", "PMI_ID", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"PMIx", "PMIX_RANK", nullptr, nullptr, nullptr},
    {"aprun", "ALPS_APP_PE", nullptr, nullptr, nullptr},
};

// The number of a job, by which the ranks of one machine agree on a port: two jobs seldom have the same.
int64_t job_number(const Variables& variables) {
  std::string job = fmt::format("{}", getuid());
  for (const char* name : {"PMI_JOBID", "FLUX_JOB_ID", "PALS_APID", "LSB_JOBID", "PBS_JOBID", "SLURM_JOB_ID", "PWD"})
    if (variables.has(name)) job += variables.text(name);
  int64_t number = 0;
  for (const char letter : job) number = (number * 31 + static_cast<unsigned char>(letter)) % 1'000'003;
  return number;
}

// Whether a launcher of another MPI started this process together with others.
bool read_other_launcher(const Variables& variables, Launch& launch) {
  for (const OtherLauncher& other : other_launchers) {
    if (!variables.has(other.rank)) continue;
    if (other.size == nullptr || !variables.has(other.size)) {
      throw Error(
          ExitCode::usage,
          "{}={}: started by {}, which does not say how many ranks there are: set RANK, WORLD_SIZE, MASTER_ADDR "
          "and MASTER_PORT",
          other.rank, variables.text(other.rank), other.name);
    }
    launch.source = Launch::Source::other_mpi;
    read_rank(variables, launch, other.rank, other.size, other.local_rank, other.local_size);
    if (launch.size == 1) return true;
    if (other.nodes != nullptr && variables.text(other.nodes) == "1") launch.local_size = launch.size;
    const bool on_one_node = launch.local_size == launch.size;
    if (!on_one_node && !(variables.has("MASTER_ADDR") && variables.has("MASTER_PORT"))) {
      throw Error(
          ExitCode::usage,
          "{}={} and {}={}: started by {}{}, and MASTER_ADDR and MASTER_PORT do not say where rank 0 is: set them to "
          "its host and to a port that is free there",
          other.rank, launch.rank, other.size, launch.size, other.name,
          launch.local_size > 0 ? " on several nodes" : "");
    }
    launch.master_addresses = {variables.has("MASTER_ADDR") ? master_address(variables) : "127.0.0.1"};
    launch.master_port = variables.integer_or(
        "MASTER_PORT", lowest_job_port + static_cast<int>(job_number(variables) % num_job_ports), 1, 65535);
    return true;
  }
  return false;
}

// Returns element `node` of Slurm's short form of a list ("4(x2),3" is 4, 4, 3); 0 if the list is shorter.
int tasks_on_node(const std::string& list, int node) {
  const char* at = list.c_str();
  while (*at != '\0') {
    char* end = nullptr;
    const long tasks = std::strtol(at, &end, 10);
    const long times = std::strncmp(end, "(x", 2) == 0 ? std::strtol(end + 2, &end, 10) : 1;
    if (node < times) return static_cast<int>(tasks);
    node -= static_cast<int>(times);
    at = std::strchr(end, ',');
    if (at == nullptr) return 0;
    ++at;
  }
  return 0;
}

bool in_slurm_step(const Variables& variables) {
  if (!variables.has("SLURM_STEP_ID") || !variables.has("SLURM_PROCID")) return false;
  return variables.number("SLURM_STEP_ID", 0, std::numeric_limits<uint32_t>::max()) < first_special_step;
}

// Returns true if a launcher of another MPI runs within the step, as mpiexec of MPICH and Intel MPI does: it starts its
// processes by one task on each node. srun itself sets the same variables, with the step's values.
bool is_within_step(const Variables& variables, const OtherLauncher& other) {
  return other.size != nullptr && variables.has(other.rank) && variables.has(other.size) &&
         (variables.text(other.rank) != variables.text("SLURM_PROCID") ||
          variables.text(other.size) != variables.text("SLURM_STEP_NUM_TASKS"));
}

bool has_launcher_within_step(const Variables& variables) {
  return std::any_of(std::begin(other_launchers), std::end(other_launchers),
                     [&](const OtherLauncher& other) { return is_within_step(variables, other); });
}

// The whole number that a variable begins with, as a batch system tells it; 1 if it is not set or no number.
int64_t count_in(const Variables& variables, const char* name) {
  const std::string value = variables.text(name);
  int32_t count = 1;
  std::from_chars(value.data(), value.data() + value.size(), count);
  return count;
}

// Returns the number of names that a mark separates; 0 in an empty list.
int64_t names_in_list(const std::string& list, char mark) {
  return list.empty() ? 0 : std::count(list.begin(), list.end(), mark) + 1;
}

// Returns the number of different words, each on a line of its own in a file of hosts; 0 if there is no such file.
int64_t hosts_in_file(const std::string& path) {
  std::ifstream file(path);
  std::set<std::string> hosts;
  for (std::string host; std::getline(file, host);)
    if (!host.empty()) hosts.insert(host);
  return std::ssize(hosts);
}

// Returns the number of different hosts among the words "host host ..." or "host 2 host 4 ...".
int64_t hosts_in_list(const std::string& list) {
  std::istringstream words(list);
  std::set<std::string> hosts;
  for (std::string word; words >> word;)
    if (word.find_first_not_of("0123456789") != std::string::npos) hosts.insert(word);
  return std::ssize(hosts);
}

// Returns the number of nodes in Slurm's short form of a list: 3 in "4(x2),3".
int64_t nodes_in_short_form(const std::string& list) {
  int64_t nodes = 0;
  while (tasks_on_node(list, static_cast<int>(nodes)) > 0 && nodes < max_ranks) ++nodes;
  return nodes;
}

// Returns the number of strings in a JSON list of hosts.
int64_t hosts_in_json(const std::string& list) { return std::count(list.begin(), list.end(), '"') / 2; }

// Notes the job's tasks and nodes, which batch systems tell the job's script. Slots count as tasks only where the hosts
// are not told: on one host they may be cores for threads.
void read_job_size(const Variables& variables, Launch& launch) {
  const auto note = [&](const char* name, int64_t count, int& noted, std::string& variable) {
    if (noted > 1 || count <= 1) return;
    noted = static_cast<int>(std::min<int64_t>(count, std::numeric_limits<int32_t>::max()));
    variable = name;
  };
  const auto note_tasks = [&](const char* name, int64_t count) {
    note(name, count, launch.tasks_of_job, launch.tasks_variable);
  };
  const auto note_nodes = [&](const char* name, int64_t count) {
    note(name, count, launch.nodes_of_job, launch.nodes_variable);
  };
  for (const char* tasks : {"SLURM_NTASKS", "SLURM_NPROCS"}) note_tasks(tasks, count_in(variables, tasks));
  for (const char* nodes :
       {"SLURM_JOB_NUM_NODES", "SLURM_NNODES", "PBS_NUM_NODES", "NHOSTS", "AWS_BATCH_JOB_NUM_NODES"})
    note_nodes(nodes, count_in(variables, nodes));
  if (variables.has("SLURM_NTASKS_PER_NODE"))
    note_tasks("SLURM_NTASKS_PER_NODE", count_in(variables, "SLURM_NTASKS_PER_NODE") * launch.nodes_of_job);
  note_nodes("SLURM_TASKS_PER_NODE", nodes_in_short_form(variables.text("SLURM_TASKS_PER_NODE")));
  for (const char* file : {"PBS_NODEFILE", "OAR_NODEFILE", "COBALT_NODEFILE", "LSB_DJOB_HOSTFILE"})
    note_nodes(file, hosts_in_file(variables.text(file)));
  for (const char* list : {"LSB_MCPU_HOSTS", "LSB_HOSTS"}) note_nodes(list, hosts_in_list(variables.text(list)));
  note_nodes("AZ_BATCH_NODE_LIST", names_in_list(variables.text("AZ_BATCH_NODE_LIST"), ';'));
  note_nodes("SM_HOSTS", hosts_in_json(variables.text("SM_HOSTS")));
  if (!variables.has("PBS_NODEFILE")) note_tasks("PBS_NP", count_in(variables, "PBS_NP"));
  if (!variables.has("LSB_MCPU_HOSTS") && !variables.has("LSB_HOSTS"))
    note_tasks("LSB_DJOB_NUMPROC", count_in(variables, "LSB_DJOB_NUMPROC"));
  // Launchers that tell the number of processes, but not the rank of this one.
  for (const OtherLauncher& launcher : other_launchers)
    if (launcher.size != nullptr) note_tasks(launcher.size, count_in(variables, launcher.size));
  // The first pod of an indexed job of Kubernetes cannot tell whether there are others.
  if (variables.has("JOB_COMPLETION_INDEX"))
    note_nodes("JOB_COMPLETION_INDEX", count_in(variables, "JOB_COMPLETION_INDEX") + 1);
}

void read_slurm(const Variables& variables, Launch& launch) {
  launch.source = Launch::Source::slurm;
  read_rank(variables, launch, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr);
  if (variables.has("SLURM_STEP_TASKS_PER_NODE") && variables.has("SLURM_NODEID"))
    launch.local_size =
        tasks_on_node(variables.text("SLURM_STEP_TASKS_PER_NODE"), variables.integer("SLURM_NODEID", 0));
  const int64_t job = variables.number("SLURM_JOB_ID", 0, std::numeric_limits<uint32_t>::max());
  const int64_t step = variables.number("SLURM_STEP_ID", 0, std::numeric_limits<uint32_t>::max());
  launch.mpi = variables.has("PMIX_RANK");
  launch.job = fmt::format("{}.{}", job, step);
  const char* nodes = variables.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  const std::string first_node = first_host(variables.text(nodes));
  for (const std::string& address : {first_node, variables.text("SLURM_LAUNCH_NODE_IPADDR")})
    if (!address.empty()) launch.master_addresses.push_back(address);
  if (variables.has("MASTER_ADDR")) launch.master_addresses = {master_address(variables)};
  if (launch.master_addresses.empty() && launch.size > 1)
    throw Error(ExitCode::usage,
                "neither SLURM_STEP_NODELIST nor MASTER_ADDR tells the node of rank 0: set MASTER_ADDR");
  launch.master_port = variables.integer_or(
      "MASTER_PORT", lowest_job_port + static_cast<int>((job * 7 + step) % num_job_ports), 1, 65535);
}

// Checks that RANK and WORLD_SIZE, if set as well, give the same rank and size.
void check_same_rank(const Variables& variables, const Launch& launch, const char* rank, const char* size) {
  if (!variables.has("RANK") || !variables.has("WORLD_SIZE")) return;
  const std::string given = variables.text("RANK") + " of " + variables.text("WORLD_SIZE");
  if (given != fmt::format("{} of {}", launch.rank, launch.size))
    throw Error(ExitCode::usage,
                "RANK={} and WORLD_SIZE={} contradict {}={} and {}={}: unset them, or start without {}",
                variables.text("RANK"), variables.text("WORLD_SIZE"), rank, launch.rank, size, launch.size,
                launch.source == Launch::Source::open_mpi ? "mpirun" : "srun");
}

std::vector<int> cores_of(pid_t process) {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(process, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

}  // namespace

Launch find_launch(const Environment& environment) {
  const Variables variables(environment);
  Launch launch;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  launch.host = host;
  const bool plain = variables.has("RANK") || variables.has("WORLD_SIZE");
  // torchrun orders its ranks by itself: those of the launcher that started it, once per node, may be others.
  const bool by_torchrun = plain && variables.has("TORCHELASTIC_RUN_ID");
  if (!by_torchrun && (variables.has("OMPI_COMM_WORLD_RANK") || variables.has("OMPI_COMM_WORLD_SIZE"))) {
    launch.source = Launch::Source::open_mpi;
    launch.mpi = true;
    read_rank(variables, launch, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
              "OMPI_COMM_WORLD_LOCAL_SIZE");
    check_same_rank(variables, launch, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  } else if (plain) {
    launch.source = Launch::Source::variables;
    read_rank(variables, launch, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
    if (launch.size > 1) read_master(variables, launch);
    if (!by_torchrun && in_slurm_step(variables)) {
      // Another launcher may run within a Slurm step, once per node; its number of ranks then differs from Slurm's.
      Launch slurm;
      read_slurm(variables, slurm);
      if (slurm.size == launch.size) check_same_rank(variables, slurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
    }
  } else if (in_slurm_step(variables) && !has_launcher_within_step(variables)) {
    read_slurm(variables, launch);
  } else if (!read_other_launcher(variables, launch)) {
    read_job_size(variables, launch);
  }
  return launch;
}

Launch find_launch() {
  return find_launch([](const char* name) -> const char* { return std::getenv(name); });
}

std::string describe(const Launch& launch) {
  static constexpr const char* names[] = {"alone", "RANK and WORLD_SIZE", "Slurm", "mpirun", "another MPI"};
  return fmt::format("rank {} of {} ({})", launch.rank, launch.size, names[static_cast<int>(launch.source)]);
}

std::string first_host(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t close = list.find(']', i);
    if (close == std::string::npos) return "";
    host += list.substr(i + 1, list.find_first_of(",-]", i) - i - 1);
    i = close;
  }
  return host;
}

bool set_up_on_node(const Launch& launch) {
  const bool launched = launch.source == Launch::Source::open_mpi || launch.source == Launch::Source::slurm;
  if (launched) prctl(PR_SET_PDEATHSIG, SIGKILL);
  // A launcher that ends its ranks may stop reading their output first. The ranks must still exit with their own codes,
  // which tell a job's script whether to requeue the job.
  if (launch.size > 1) std::signal(SIGPIPE, SIG_IGN);
  std::vector<int> cores = cores_of(0);
  const auto num_ranks = static_cast<size_t>(launch.local_size);
  const bool bound = static_cast<long>(cores.size()) < sysconf(_SC_NPROCESSORS_ONLN);
  if (launch.source == Launch::Source::open_mpi && bound) {
    // mpirun itself is not bound to cores.
    const std::vector<int> all = cores_of(getppid());
    if (all.size() > cores.size()) cores = all;
  } else if (bound) {
    return true;
  }
  // The cores cannot be divided if the number of ranks on this node is unknown.
  if (cores.empty() || launch.size == 1 || launch.local_size == 0) return true;
  cpu_set_t share;
  CPU_ZERO(&share);
  const bool enough = cores.size() >= num_ranks;
  const auto index = static_cast<size_t>(std::max(launch.local_rank, 0));
  const size_t first = enough ? cores.size() * index / num_ranks : 0;
  const size_t end = enough ? cores.size() * (index + 1) / num_ranks : cores.size();
  for (size_t i = first; i < end; ++i) CPU_SET(static_cast<size_t>(cores[i]), &share);
  sched_setaffinity(0, sizeof share, &share);
  return enough;
}

}  // namespace gptrain::comm
