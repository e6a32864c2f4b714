#include "dictionary.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace word_beam {
namespace {

// C++20 has std::popcount, C++17 has no such function.
std::int32_t count_bits(std::uint64_t bits) {
  bits -= (bits >> 1) & 0x5555555555555555ULL;
  bits = (bits & 0x3333333333333333ULL) + ((bits >> 2) & 0x3333333333333333ULL);
  bits = (bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
  return static_cast<std::int32_t>((bits * 0x0101010101010101ULL) >> 56);
}

}  // namespace

Dictionary::Dictionary(std::vector<std::vector<std::int32_t>> words, bool is_open)
    : words_(std::move(words)) {
  std::sort(words_.begin(), words_.end());
  words_.erase(std::unique(words_.begin(), words_.end()), words_.end());
  if (words_.empty()) throw std::invalid_argument("A dictionary must hold at least one word.");
  if (words_.front().empty()) throw std::invalid_argument("A word must not be empty.");
  words_.shrink_to_fit();

  Prefix root;
  root.word_end = num_words();
  prefixes_.push_back(root);
  // Depth first, so that the rest of a word that shares no more prefixes is adjacent in memory.
  std::vector<std::pair<std::int32_t, std::size_t>> waiting{{kRoot, 0}};
  while (!waiting.empty()) {
    const auto [index, depth] = waiting.back();
    waiting.pop_back();
    add_children(index, depth);
    const Prefix& done = prefix(index);
    for (std::int32_t i = 0; i < done.num_children; ++i) {
      waiting.emplace_back(done.first_child + i, depth + 1);
    }
  }
  if (is_open) {
    other_ = static_cast<std::int32_t>(prefixes_.size());
    Prefix other;
    other.word_begin = other.word_end = other_word();
    prefixes_.push_back(other);
  }
  prefixes_.shrink_to_fit();
}

void Dictionary::add_children(std::int32_t index, std::size_t depth) {
  const Prefix parent = prefix(index);
  std::int32_t begin = parent.word_begin;
  const bool terminal = word(begin).size() == depth;
  std::uint64_t next_labels = 0;
  const auto first_child = static_cast<std::int32_t>(prefixes_.size());
  if (terminal) ++begin;  // the word that equals the prefix comes first
  while (begin < parent.word_end) {
    Prefix longer;
    longer.label = word(begin)[depth];
    longer.word_begin = begin;
    while (begin < parent.word_end && word(begin)[depth] == longer.label) ++begin;
    longer.word_end = begin;
    if (longer.label >= 0 && longer.label < 64) next_labels |= std::uint64_t{1} << longer.label;
    prefixes_.push_back(longer);
  }
  Prefix& changed = prefixes_[static_cast<std::size_t>(index)];
  changed.terminal = terminal;
  changed.next_labels = next_labels;
  changed.first_child = first_child;
  changed.num_children = static_cast<std::int32_t>(prefixes_.size()) - first_child;
}

std::int32_t Dictionary::child(std::int32_t index, std::int32_t label) const {
  const std::int32_t listed = listed_child(index, label);
  return listed == kNone ? other_ : listed;
}

std::int32_t Dictionary::listed_child(std::int32_t index, std::int32_t label) const {
  const Prefix& parent = prefix(index);
  if (label >= 0 && label < 64) {
    const std::uint64_t bit = std::uint64_t{1} << label;
    if (!(parent.next_labels & bit)) return kNone;
    return parent.first_child + count_bits(parent.next_labels & (bit - 1));
  }
  const auto begin = prefixes_.begin() + parent.first_child;
  const auto end = begin + parent.num_children;
  const auto found =
      std::lower_bound(begin, end, label, [](const Prefix& p, std::int32_t l) { return p.label < l; });
  if (found == end || found->label != label) return kNone;
  return static_cast<std::int32_t>(found - prefixes_.begin());
}

}  // namespace word_beam
