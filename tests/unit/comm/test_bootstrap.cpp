// Rank and size of a process from each launcher's variables, and every way in which these can be wrong.
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "comm/bootstrap.h"
#include "comm/rendezvous.h"
#include "unit/temporary_folder.h"

namespace test_bootstrap {

using namespace gptrain;

namespace {

using Settings = std::map<std::string, std::string>;

Launch launch_with(const Settings& settings) {
  return find_launch([&](const char* name) -> const char* {
    const auto found = settings.find(name);
    return found == settings.end() ? nullptr : found->second.c_str();
  });
}

Settings with(Settings settings, const Settings& changes) {
  for (const auto& [name, value] : changes) settings[name] = value;
  return settings;
}

void require_refusal(const Settings& settings, const std::string& message) {
  try {
    launch_with(settings);
    FAIL("not refused: " << message);
  } catch (const Error& error) {
    REQUIRE(error.what() == message);
    REQUIRE(error.code() == ExitCode::usage);
  }
}

const Settings plain = {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29500"}};
const Settings mpirun = {{"OMPI_COMM_WORLD_RANK", "2"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Settings slurm = {{"SLURM_JOB_ID", "1234"},
                        {"SLURM_STEP_ID", "2"},
                        {"SLURM_PROCID", "5"},
                        {"SLURM_STEP_NUM_TASKS", "6"},
                        {"SLURM_LOCALID", "1"},
                        {"SLURM_NODEID", "2"},
                        {"SLURM_STEP_NODELIST", "cpu[07-09]"},
                        {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}};

}  // namespace

TEST_CASE("a process without a launcher is alone") {
  const Launch launch = launch_with({});
  REQUIRE(launch.source == Launch::Source::alone);
  REQUIRE(launch.rank == 0);
  REQUIRE(launch.size == 1);
  REQUIRE_FALSE(launch.host.empty());
  REQUIRE(describe(launch) == "rank 0 of 1 (alone)");
}

TEST_CASE("launchers of other MPIs") {
  const Settings hydra = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  const Launch launch = launch_with(hydra);
  REQUIRE(launch.source == Launch::Source::other_mpi);
  REQUIRE(launch.rank == 1);
  REQUIRE(launch.size == 2);
  REQUIRE(launch.local_size == 2);
  REQUIRE(launch.master_addresses == std::vector<std::string>{"127.0.0.1"});
  REQUIRE(launch.master_port == launch_with(with(hydra, {{"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}})).master_port);
  REQUIRE(launch_with(
              with(hydra, {{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}}))
              .size == 1);
  for (const auto& [rank, size] : {std::pair{"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
                                   {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
                                   {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                   {"PALS_RANKID", "PMI_SIZE"},
                                   {"MPI_RANKID", "MPI_NRANKS"},
                                   {"HOROVOD_RANK", "HOROVOD_SIZE"},
                                   {"PMI_ID", "PMI_SIZE"},
                                   {"PMI_RANK", "PMI_SIZE"}}) {
    const Settings settings = {{rank, "3"}, {size, "8"}};
    REQUIRE_THROWS_AS(launch_with(settings), Error);  // nobody says where rank 0 is
    const Launch found = launch_with(with(settings, {{"MASTER_ADDR", "[fe80::1]"}, {"MASTER_PORT", "5000"}}));
    REQUIRE(found.rank == 3);
    REQUIRE(found.size == 8);
    REQUIRE(found.master_addresses == std::vector<std::string>{"fe80::1"});
    REQUIRE_THROWS_AS(launch_with({{rank, "3"}}), Error);
  }
  // A launcher that tells the number of nodes instead of the ranks of this one.
  const Settings flux = {{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "2"}, {"FLUX_TASK_LOCAL_ID", "1"}};
  REQUIRE(launch_with(with(flux, {{"FLUX_JOB_NNODES", "1"}})).local_size == 2);
  REQUIRE_THROWS_AS(launch_with(with(flux, {{"FLUX_JOB_NNODES", "2"}})), Error);
  // Launchers that tell the rank alone.
  for (const char* const rank : {"PMIX_RANK", "ALPS_APP_PE"}) {
    REQUIRE_THROWS_AS(launch_with({{rank, "0"}}), Error);
    REQUIRE(launch_with(with(plain, {{rank, "0"}})).source == Launch::Source::variables);
    REQUIRE(launch_with(with(slurm, {{rank, "5"}})).source == Launch::Source::slurm);
  }
  // Variables of a plain start come first, and Slurm's own ones if srun itself sets the others too.
  REQUIRE(launch_with(with(plain, hydra)).source == Launch::Source::variables);
  REQUIRE(launch_with(with(slurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "6"}})).source == Launch::Source::slurm);
}

TEST_CASE("a launcher of another MPI within a step of Slurm") {
  // mpiexec of Intel MPI starts one task of a step on each node, which starts the ranks of that node.
  const Settings step = with(slurm, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_LOCALID", "0"}});
  for (const std::string rank : {"0", "1", "2"}) {
    const Launch launch = launch_with(
        with(step, {{"PMI_RANK", rank}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", rank}, {"MPI_LOCALNRANKS", "3"}}));
    REQUIRE(launch.source == Launch::Source::other_mpi);
    REQUIRE(launch.rank == std::stoi(rank));
    REQUIRE(launch.size == 3);
  }
}

TEST_CASE("a process that is alone in a job of several tasks or nodes") {
  for (const char* const variable : {"SLURM_JOB_NUM_NODES", "PBS_NUM_NODES", "NHOSTS", "AWS_BATCH_JOB_NUM_NODES"}) {
    const Launch launch = launch_with({{"SLURM_NTASKS", "1"}, {variable, "3"}});
    REQUIRE(launch.source == Launch::Source::alone);
    REQUIRE(launch.nodes_of_job == 3);
    REQUIRE(launch.nodes_variable == variable);
    REQUIRE(launch_with({{variable, "1"}}).nodes_of_job == 1);
    REQUIRE(launch_with({{variable, "many"}}).nodes_of_job == 1);
    REQUIRE(launch_with(with(mpirun, {{variable, "3"}})).nodes_of_job == 1);
  }
}

TEST_CASE("a process that is alone in a job of another batch system") {
  const TemporaryFolder folder;
  const std::string hosts = folder.path() / "hosts", one = folder.path() / "one";
  std::ofstream(hosts) << "n1\nn1\nn2\n";
  std::ofstream(one) << "n1\nn1\n";
  const auto nodes = [](const Settings& settings) { return launch_with(settings).nodes_of_job; };
  CHECK(nodes({{"PBS_NODEFILE", hosts}}) == 2);
  for (const char* const file : {"OAR_NODEFILE", "COBALT_NODEFILE", "LSB_DJOB_HOSTFILE"})
    CHECK(nodes({{file, hosts}}) == 2);
  CHECK(nodes({{"AZ_BATCH_NODE_LIST", "10.0.0.4;10.0.0.5"}}) == 2);
  CHECK(nodes({{"LSB_HOSTS", "n1 n1 n2 n2"}}) == 2);
  CHECK(nodes({{"LSB_MCPU_HOSTS", "n1 2 n2 2"}}) == 2);
  CHECK(nodes({{"SLURM_TASKS_PER_NODE", "2(x2)"}}) == 2);
  CHECK(nodes({{"SLURM_NNODES", "3"}}) == 3);
  CHECK(nodes({{"JOB_COMPLETION_INDEX", "2"}}) == 3);
  CHECK(nodes({{"SM_HOSTS", R"(["algo-1","algo-2"])"}}) == 2);
  // Slots of one host may be cores for threads.
  for (const Settings& job : {Settings{{"PBS_NODEFILE", one}, {"PBS_NP", "2"}},
                              Settings{{"LSB_MCPU_HOSTS", "n1 8"}, {"LSB_DJOB_NUMPROC", "8"}},
                              Settings{{"SLURM_TASKS_PER_NODE", "8"}}, Settings{{"JOB_COMPLETION_INDEX", "0"}},
                              Settings{{"SM_HOSTS", R"(["algo-1"])"}}, Settings{{"PBS_NODEFILE", "nowhere"}}}) {
    CHECK(launch_with(job).nodes_of_job == 1);
    CHECK(launch_with(job).tasks_of_job == 1);
  }
  const auto tasks = [](const Settings& settings) {
    const Launch launch = launch_with(settings);
    return launch.tasks_variable + "=" + std::to_string(launch.tasks_of_job);
  };
  CHECK(tasks({{"PBS_NP", "4"}}) == "PBS_NP=4");
  CHECK(tasks({{"PMI_SIZE", "4"}}) == "PMI_SIZE=4");
  CHECK(tasks({{"LSB_DJOB_NUMPROC", "8"}}) == "LSB_DJOB_NUMPROC=8");
  CHECK(tasks({{"SLURM_NPROCS", "4"}}) == "SLURM_NPROCS=4");
  CHECK(tasks({{"SLURM_NTASKS_PER_NODE", "2"}, {"SLURM_NNODES", "3"}}) == "SLURM_NTASKS_PER_NODE=6");
}

TEST_CASE("torchrun's agent, brackets, and a job of several tasks") {
  const Launch beside = launch_with(with(plain, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  REQUIRE(beside.master_port != 29500);
  REQUIRE(launch_with(with(plain, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).master_port == 29500);
  for (int port = 20000; port < 32000; ++port)
    REQUIRE(launch_with(with(plain, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"MASTER_PORT", std::to_string(port)}}))
                .master_port != port);
  // Started by srun or mpirun once per node, with one rank each, in another order.
  const Settings by_torchrun = with(plain, {{"WORLD_SIZE", "6"}, {"TORCHELASTIC_RUN_ID", "none"}});
  for (const Settings& outer : {slurm, with(mpirun, {{"OMPI_COMM_WORLD_SIZE", "6"}})}) {
    const Launch inner = launch_with(with(outer, by_torchrun));
    REQUIRE(inner.source == Launch::Source::variables);
    REQUIRE(inner.rank == 3);
    REQUIRE_FALSE(inner.mpi);
  }
  REQUIRE(launch_with(with(plain, {{"MASTER_ADDR", "[::1]"}})).master_addresses == std::vector<std::string>{"::1"});
  REQUIRE(launch_with({{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "4"}}).tasks_of_job == 4);
  REQUIRE(launch_with(slurm).tasks_of_job == 1);
}

TEST_CASE("RANK and WORLD_SIZE") {
  Launch launch = launch_with(plain);
  REQUIRE(launch.source == Launch::Source::variables);
  REQUIRE(launch.rank == 3);
  REQUIRE(launch.size == 8);
  REQUIRE(launch.master_addresses == std::vector<std::string>{"head"});
  REQUIRE(launch.master_port == 29500);
  REQUIRE_FALSE(launch.mpi);
  REQUIRE(launch.local_size == 0);
  launch = launch_with(with(plain, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}));
  REQUIRE(launch.local_rank == 1);
  REQUIRE(launch.local_size == 2);
  // A single rank needs no meeting place.
  REQUIRE(launch_with({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).size == 1);
}

TEST_CASE("mpirun") {
  const Launch launch = launch_with(mpirun);
  REQUIRE(launch.source == Launch::Source::open_mpi);
  REQUIRE(launch.mpi);
  REQUIRE(launch.rank == 2);
  REQUIRE(launch.size == 4);
  REQUIRE(launch.local_rank == 0);
  REQUIRE(launch.local_size == 2);
  SECTION("its daemon may run in a step of Slurm") {
    REQUIRE(launch_with(with(slurm, mpirun)).source == Launch::Source::open_mpi);
  }
}

TEST_CASE("a step of Slurm") {
  Launch launch = launch_with(slurm);
  REQUIRE(launch.source == Launch::Source::slurm);
  REQUIRE(launch.rank == 5);
  REQUIRE(launch.size == 6);
  REQUIRE(launch.local_rank == 1);
  REQUIRE(launch.local_size == 2);
  REQUIRE(launch.master_addresses == std::vector<std::string>{"cpu07"});
  REQUIRE(launch.master_port == 20000 + (1234 * 7 + 2) % 12000);
  REQUIRE(launch.job == "1234.2");
  REQUIRE_FALSE(launch.mpi);
  REQUIRE(launch_with(with(slurm, {{"PMIX_RANK", "5"}})).mpi);
  launch = launch_with(with(slurm, {{"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.7"}}));
  REQUIRE(launch.master_addresses == std::vector<std::string>{"cpu07", "10.0.0.7"});
  launch = launch_with(with(slurm, {{"MASTER_ADDR", "other"}, {"MASTER_PORT", "1"}}));
  REQUIRE(launch.master_addresses == std::vector<std::string>{"other"});
  REQUIRE(launch.master_port == 1);
  launch = launch_with(with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "3,1(x2)"}}));
  REQUIRE(launch.local_size == 1);
  SECTION("a batch script and an interactive shell are none") {
    Settings batch = slurm;
    batch.erase("SLURM_STEP_ID");
    REQUIRE(launch_with(batch).source == Launch::Source::alone);
    REQUIRE(launch_with(with(slurm, {{"SLURM_STEP_ID", "4294967290"}})).source == Launch::Source::alone);
  }
  SECTION("a launcher of its own may run in it") {
    REQUIRE(launch_with(with(slurm, plain)).source == Launch::Source::variables);
  }
}

TEST_CASE("the first host of Slurm's lists") {
  REQUIRE(first_host("").empty());
  REQUIRE(first_host("login") == "login");
  REQUIRE(first_host("a1,b[2-3]") == "a1");
  REQUIRE(first_host("node[07-09,12],login") == "node07");
  REQUIRE(first_host("node[12]") == "node12");
  REQUIRE(first_host("rack[1-2]-node[3,5]-ib") == "rack1-node3-ib");
  REQUIRE(first_host("broken[1").empty());
}

TEST_CASE("variables that are missing, no numbers, out of range, or contradict each other are refused") {
  require_refusal({{"RANK", "0"}}, "RANK is set, but WORLD_SIZE is not: set both or neither");
  require_refusal({{"WORLD_SIZE", "2"}}, "WORLD_SIZE is set, but RANK is not: set both or neither");
  require_refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}},
                  "MASTER_ADDR is not set: with WORLD_SIZE=2 it must name the host of rank 0");
  require_refusal(with(plain, {{"MASTER_ADDR", "head:29500"}}),
                  "MASTER_ADDR=head:29500: must be a host alone: give its port as MASTER_PORT");
  for (const std::string address : {"[]", "tcp://head", "a b", "a,b"})
    require_refusal(with(plain, {{"MASTER_ADDR", address}}),
                    "MASTER_ADDR=" + address + ": must be the name or address of rank 0's host");
  require_refusal(with(plain, {{"MASTER_ADDR", "a\nb"}}),
                  "MASTER_ADDR=a\\nb: must be the name or address of rank 0's host");
  require_refusal(with(plain, {{"RANK", "1\nb"}}), "RANK=1\\nb: must be a whole number from 0 to 2147483647");
  require_refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}},
                  "MASTER_PORT is not set: with WORLD_SIZE=2 it must be a port that rank 0 can take");
  require_refusal(with(plain, {{"RANK", "8"}}), "RANK=8: must be below WORLD_SIZE=8");
  require_refusal(with(plain, {{"RANK", "-1"}}), "RANK=-1: must be a whole number from 0 to 2147483647");
  require_refusal(with(plain, {{"RANK", "1x"}}), "RANK=1x: must be a whole number from 0 to 2147483647");
  require_refusal(with(plain, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE=0: must be a whole number from 1 to 1048576");
  require_refusal(with(plain, {{"WORLD_SIZE", "99999999999"}}),
                  "WORLD_SIZE=99999999999: must be a whole number from 1 to 1048576");
  require_refusal(with(plain, {{"MASTER_PORT", "70000"}}), "MASTER_PORT=70000: must be a whole number from 1 to 65535");
  require_refusal(with(plain, {{"LOCAL_RANK", "8"}}), "LOCAL_RANK=8: must be a whole number from 0 to 7");
  require_refusal(with(plain, {{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
                  "LOCAL_RANK=2: must be below LOCAL_WORLD_SIZE=2");
  require_refusal(with(mpirun, {{"RANK", "1"}, {"WORLD_SIZE", "4"}}),
                  "RANK=1 and WORLD_SIZE=4 contradict OMPI_COMM_WORLD_RANK=2 and OMPI_COMM_WORLD_SIZE=4: unset them, "
                  "or start without mpirun");
  require_refusal(with(slurm, with(plain, {{"WORLD_SIZE", "6"}})),
                  "RANK=3 and WORLD_SIZE=6 contradict SLURM_PROCID=5 and SLURM_STEP_NUM_TASKS=6: unset them, or start "
                  "without srun");
  Settings incomplete = slurm;
  incomplete.erase("SLURM_JOB_ID");
  require_refusal(
      incomplete,
      "SLURM_JOB_ID is not set, although SLURM_STEP_ID is: set it, or unset SLURM_STEP_ID to start without Slurm");
  incomplete = slurm;
  incomplete.erase("SLURM_STEP_NODELIST");
  require_refusal(incomplete, "neither SLURM_STEP_NODELIST nor MASTER_ADDR tells the node of rank 0: set MASTER_ADDR");
}

TEST_CASE("ranks that do not come are told of with the time that was waited, and what sets it") {
  Launch launch;
  launch.source = Launch::Source::variables;
  launch.size = 3;
  launch.host = "here";
  const auto message = [&](const Timeout& timeout) {
    try {
      join_rendezvous(launch, listen_as_master(launch), {}, {}, timeout);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string rest = ": start all ranks, and see whether rank 0 (here, port ";
  CHECK(message({.seconds = 0.01})
            .starts_with("of 3 ranks, ranks 1, 2 did not come within 0.01 s (comm.timeout_seconds)" + rest));
  CHECK(
      message({.seconds = 0.01, .set_by = ""}).starts_with("of 3 ranks, ranks 1, 2 did not come within 0.01 s" + rest));
}

}  // namespace test_bootstrap
