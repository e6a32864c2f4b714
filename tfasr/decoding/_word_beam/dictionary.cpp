#include "dictionary.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace word_beam {

Dictionary::Dictionary(std::vector<std::vector<std::int32_t>> words) : words_(std::move(words)) {
  std::sort(words_.begin(), words_.end());
  words_.erase(std::unique(words_.begin(), words_.end()), words_.end());
  if (words_.empty()) throw std::invalid_argument("A dictionary must hold at least one word.");
  if (words_.front().empty()) throw std::invalid_argument("A word must not be empty.");
  words_.shrink_to_fit();

  Prefix root;
  root.word_end = num_words();
  prefixes_.push_back(root);
  // Level by level: everything behind `level_end` is one class longer.
  std::size_t depth = 0;
  for (std::size_t index = 0, level_end = 1; index < prefixes_.size(); ++index) {
    if (index == level_end) {
      ++depth;
      level_end = prefixes_.size();
    }
    add_children(static_cast<std::int32_t>(index), depth);
  }
  prefixes_.shrink_to_fit();
}

void Dictionary::add_children(std::int32_t index, std::size_t depth) {
  const Prefix parent = prefix(index);
  std::int32_t begin = parent.word_begin;
  const bool terminal = word(begin).size() == depth;
  const auto first_child = static_cast<std::int32_t>(prefixes_.size());
  if (terminal) ++begin;  // the shortest of the words stands first
  while (begin < parent.word_end) {
    Prefix longer;
    longer.label = word(begin)[depth];
    longer.word_begin = begin;
    while (begin < parent.word_end && word(begin)[depth] == longer.label) ++begin;
    longer.word_end = begin;
    prefixes_.push_back(longer);
  }
  Prefix& changed = prefixes_[static_cast<std::size_t>(index)];
  changed.terminal = terminal;
  changed.first_child = first_child;
  changed.num_children = static_cast<std::int32_t>(prefixes_.size()) - first_child;
}

std::int32_t Dictionary::child(std::int32_t index, std::int32_t label) const {
  const Prefix& parent = prefix(index);
  const auto begin = prefixes_.begin() + parent.first_child;
  const auto end = begin + parent.num_children;
  const auto found =
      std::lower_bound(begin, end, label, [](const Prefix& p, std::int32_t l) { return p.label < l; });
  if (found == end || found->label != label) return kNone;
  return static_cast<std::int32_t>(found - prefixes_.begin());
}

}  // namespace word_beam
