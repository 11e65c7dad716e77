#include "comm/sum_algorithms.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace gptrain::inline comm {
namespace {

struct Run {
  int64_t first, end;
  int64_t count() const { return end - first; }
};

void add(float* to, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

int largest_power(int size) {
  int power = 1;
  while (2 * power <= size) power *= 2;
  return power;
}

// Sends one run to a rank while another comes from a rank. Runs may be empty.
void exchange(Communicator& group, const float* sent, int64_t send_count, int to, float* received,
              int64_t receive_count, int from) {
  group.group_start();
  if (send_count > 0) group.send(sent, send_count, DType::f32, to);
  if (receive_count > 0) group.receive(received, receive_count, DType::f32, from);
  group.group_end();
}

void receive_all(Communicator& group, int64_t count, float* scratch) {
  for (int peer = 0; peer < group.size(); ++peer)
    if (peer != group.rank()) group.receive(scratch + peer * count, count, DType::f32, peer);
}

void send_all(Communicator& group, const float* data, int64_t count) {
  for (int peer = 0; peer < group.size(); ++peer)
    if (peer != group.rank()) group.send(data, count, DType::f32, peer);
}

// Adds up the ranks' data in rank order, where `scratch` has those of all others.
void add_up(const Communicator& group, float* data, int64_t count, float* scratch) {
  std::copy_n(data, count, scratch + group.rank() * count);
  std::copy_n(scratch, count, data);
  for (int peer = 1; peer < group.size(); ++peer) add(data, scratch + peer * count, count);
}

void sum_by_everyone(Communicator& group, float* data, int64_t count, float* scratch) {
  group.group_start();
  send_all(group, data, count);
  receive_all(group, count, scratch);
  group.group_end();
  add_up(group, data, count, scratch);
}

void sum_by_manager(Communicator& group, float* data, int64_t count, float* scratch) {
  if (group.rank() > 0) {
    group.send(data, count, DType::f32, 0);
    group.receive(data, count, DType::f32, 0);
    return;
  }
  group.group_start();
  receive_all(group, count, scratch);
  group.group_end();
  add_up(group, data, count, scratch);
  group.group_start();
  send_all(group, data, count);
  group.group_end();
}

void sum_by_ring(Communicator& group, float* data, int64_t count, float* scratch) {
  const int n = group.size(), next = (group.rank() + 1) % n, previous = (group.rank() + n - 1) % n;
  const auto piece = [&](int number) {
    const int64_t p = (number % n + n) % n;
    return Run{p * count / n, (p + 1) * count / n};
  };
  for (int step = 0; step < n - 1; ++step) {
    const Run sent = piece(group.rank() - step), received = piece(group.rank() - step - 1);
    exchange(group, data + sent.first, sent.count(), next, scratch, received.count(), previous);
    add(data + received.first, scratch, received.count());
  }
  for (int step = 0; step < n - 1; ++step) {
    const Run sent = piece(group.rank() + 1 - step), received = piece(group.rank() - step);
    exchange(group, data + sent.first, sent.count(), next, data + received.first, received.count(), previous);
  }
}

void sum_by_halving(Communicator& group, float* data, int64_t count, float* scratch) {
  const int power = largest_power(group.size()), rank = group.rank();
  // A rank beyond the power of two gives its data to another, and receives the sum.
  if (rank >= power) {
    group.send(data, count, DType::f32, rank - power);
    group.receive(data, count, DType::f32, rank - power);
    return;
  }
  const bool has_other = rank + power < group.size();
  if (has_other) {
    group.receive(scratch, count, DType::f32, rank + power);
    add(data, scratch, count);
  }
  std::vector<Run> parts = {{0, count}};
  for (int distance = power / 2; distance > 0; distance /= 2) {
    const Run all = parts.back();
    const int64_t middle = (all.first + all.end) / 2;
    const Run low{all.first, middle}, high{middle, all.end};
    const Run& kept = (rank & distance) == 0 ? low : high;
    const Run& sent = (rank & distance) == 0 ? high : low;
    exchange(group, data + sent.first, sent.count(), rank ^ distance, scratch, kept.count(), rank ^ distance);
    add(data + kept.first, scratch, kept.count());
    parts.push_back(kept);
  }
  for (int distance = 1; distance < power; distance *= 2) {
    const Run own = parts.back();
    parts.pop_back();
    const Run all = parts.back();
    const Run other = own.first == all.first ? Run{own.end, all.end} : Run{all.first, own.first};
    exchange(group, data + own.first, own.count(), rank ^ distance, data + other.first, other.count(), rank ^ distance);
  }
  if (has_other) group.send(data, count, DType::f32, rank + power);
}

}  // namespace

SumCost sum_cost(SumAlgorithm algorithm, int size, double bytes) {
  const double n = size, power = largest_power(size);
  switch (algorithm) {
    case SumAlgorithm::everyone:
      return {.messages = 1, .bytes = (n - 1) * bytes};
    case SumAlgorithm::manager:
      return {.messages = 2, .bytes = 2 * (n - 1) * bytes};
    case SumAlgorithm::ring:
      return {.messages = 2 * (n - 1), .bytes = 2 * (n - 1) / n * bytes};
    case SumAlgorithm::halving_doubling:
      break;
  }
  const double more = power < n ? 2 : 0;
  return {.messages = 2 * std::log2(power) + more, .bytes = (2 * (power - 1) / power + more) * bytes};
}

void sum_by(SumAlgorithm algorithm, Communicator& group, float* data, int64_t count, float* scratch) {
  if (group.size() == 1 || count == 0) return;
  switch (algorithm) {
    case SumAlgorithm::everyone:
      return sum_by_everyone(group, data, count, scratch);
    case SumAlgorithm::manager:
      return sum_by_manager(group, data, count, scratch);
    case SumAlgorithm::ring:
      return sum_by_ring(group, data, count, scratch);
    case SumAlgorithm::halving_doubling:
      return sum_by_halving(group, data, count, scratch);
  }
}

}  // namespace gptrain::comm
