#include "comm/texts.h"

#include <algorithm>

namespace gptrain::inline comm {

std::string broadcast_text(Communicator* group, const std::string& text, int root) {
  if (group == nullptr || group->size() == 1) return text;
  auto size = static_cast<int64_t>(text.size());
  group->broadcast(&size, 1, DType::i64, root);
  std::string result = text;
  result.resize(size);
  if (size > 0) group->broadcast(result.data(), size, DType::u8, root);
  return result;
}

void pass_texts_to_first(Communicator* group, const std::string& text,
                         const std::function<void(const std::string&)>& body) {
  const int rank = group == nullptr ? 0 : group->rank();
  auto size = static_cast<int64_t>(text.size());
  if (rank > 0) {
    group->send(&size, 1, DType::i64, 0);
    if (size > 0) group->send(text.data(), size, DType::u8, 0);
    return;
  }
  body(text);
  std::string received;
  for (int other = 1; group != nullptr && other < group->size(); ++other) {
    group->receive(&size, 1, DType::i64, other);
    received.resize(size);
    if (size > 0) group->receive(received.data(), size, DType::u8, other);
    body(received);
  }
}

std::vector<std::string> gather_texts(Communicator* group, const std::string& text) {
  if (group == nullptr || group->size() == 1) return {text};
  const auto num_ranks = static_cast<size_t>(group->size());
  const auto size = static_cast<int64_t>(text.size());
  std::vector<int64_t> sizes(num_ranks);
  group->all_gather(&size, sizes.data(), 1, DType::i64);
  // Gathers pieces of equal length, that of the longest text.
  const int64_t longest = std::max<int64_t>(*std::max_element(sizes.begin(), sizes.end()), 1);
  std::string own = text;
  own.resize(longest);
  std::string all(static_cast<size_t>(longest) * num_ranks, '\0');
  group->all_gather(own.data(), all.data(), longest, DType::u8);
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < num_ranks; ++rank)
    texts.push_back(all.substr(rank * static_cast<size_t>(longest), sizes[rank]));
  return texts;
}

}  // namespace gptrain::comm
