// Runs a body on every rank of a group, over threads and over TCP sockets.
#pragma once

#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/process_world.h"

using RankBody = std::function<void(gptrain::Communicator&)>;

// Calls rank_thread(r) in one thread per rank. Element r of the result: message of the exception of rank r, or empty.
inline std::vector<std::string> run_rank_threads(int size, const std::function<void(int)>& rank_thread) {
  std::vector<std::string> messages(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        rank_thread(rank);
      } catch (const gptrain::Error& error) {
        messages[static_cast<size_t>(rank)] =
            error.code() == gptrain::ExitCode::device ? error.what() : "wrong exit code";
      }
    });
  for (std::thread& thread : threads) thread.join();
  return messages;
}

inline std::vector<std::string> run_ranks(int size, const RankBody& body) {
  auto handles = gptrain::make_local_group(size);
  return run_rank_threads(size, [&](int rank) {
    const auto handle = std::move(handles[static_cast<size_t>(rank)]);
    body(*handle);
  });
}

// Returns a port that nobody listens at now. It is below those that the system assigns to connections, so that no
// connection of another test takes it before the caller listens there.
inline int free_port() {
  std::random_device random;
  while (true) {
    const int port = 17000 + static_cast<int>(random() % 15000);
    try {
      gptrain::listen_on(port);
      return port;
    } catch (const gptrain::Error&) {
      continue;
    }
  }
}

// Each thread plays one process of a run with RANK and WORLD_SIZE set.
inline std::vector<std::string> run_tcp_ranks(int size, const RankBody& body) {
  gptrain::Launch launch;
  launch.source = gptrain::Launch::Source::variables;
  launch.size = size;
  launch.host = "here";
  launch.master_addresses = {"127.0.0.1"};
  launch.master_port = free_port();
  return run_rank_threads(size, [&](int rank) {
    gptrain::Launch own = launch;
    own.rank = rank;
    const auto world = gptrain::make_tcp_world(own, {});
    std::vector<int> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    body(*world->make_group(ranks));
  });
}
