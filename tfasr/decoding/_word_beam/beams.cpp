#include "beams.hpp"

#include <algorithm>

namespace word_beam {

Beams::Beams(SequenceTree& tree, const Dictionary& dictionary,
             const std::vector<std::uint8_t>& kinds)
    : tree_(tree), dictionary_(dictionary), num_words_((kinds.size() + 63) / 64) {
  for (std::size_t label = 0; label < kinds.size(); ++label) {
    const auto number = static_cast<std::int32_t>(label);
    if (kinds[label] == kInside) continue;
    if (kinds[label] == kStart && dictionary.child(Dictionary::kRoot, number) < 0) continue;
    gap_labels_.push_back(number);
    if (label < 64) gap_mask_ |= std::uint64_t{1} << label;
  }
}

void Beams::grow() {
  const std::size_t capacity = std::max<std::size_t>(64, 2 * states.size());
  now.resize(capacity);
  next.resize(capacity);
  may_gap.resize(capacity);
  is_closed.resize(capacity);
  closed.resize(capacity);
  states.resize(capacity);
  open_.resize(capacity * num_words_);
}

void Beams::set_open(std::size_t slot, std::int32_t label, bool open) {
  std::uint64_t& word = open_[slot * num_words_ + static_cast<std::size_t>(label) / 64];
  const std::uint64_t bit = std::uint64_t{1} << (static_cast<unsigned>(label) % 64);
  word = open ? word | bit : word & ~bit;
}

void Beams::allow(std::size_t slot) {
  if (dictionary_.is_open()) {
    may_gap[slot] = 1;
    for (std::size_t i = 0; i < num_words_; ++i) open_[slot * num_words_ + i] = ~std::uint64_t{0};
    return;
  }
  const Prefix& prefix = dictionary_.prefix(states[slot].prefix);
  may_gap[slot] = states[slot].prefix == Dictionary::kRoot || prefix.terminal;
  open_[slot * num_words_] = prefix.next_labels | (may_gap[slot] ? gap_mask_ : 0);
  if (num_words_ == 1) return;
  for (std::size_t i = 1; i < num_words_; ++i) open_[slot * num_words_ + i] = 0;
  for (std::int32_t i = 0; i < prefix.num_children; ++i) {
    set_open(slot, dictionary_.prefix(prefix.first_child + i).label, true);
  }
  if (!may_gap[slot]) return;
  for (const std::int32_t label : gap_labels_) set_open(slot, label, true);
}

void Beams::enter(std::size_t slot, const Newcomer& newcomer) {
  states[slot] = newcomer.state;
  now[slot].p_blank = newcomer.p_blank;
  now[slot].p_non_blank = newcomer.p_non_blank;
  now[slot].total = newcomer.p_blank + newcomer.p_non_blank;
  is_closed[slot] = 0;
  allow(slot);

  SequenceTree::Node& node = tree_[newcomer.state.node];
  const auto here = static_cast<std::int32_t>(slot);
  node.slot = here;
  now[slot].last = node.label;
  now[slot].parent_slot = -1;
  if (node.parent != SequenceTree::kNone && tree_[node.parent].slot >= 0) {
    now[slot].parent_slot = tree_[node.parent].slot;
    set_open(static_cast<std::size_t>(now[slot].parent_slot), node.label, false);
  }
  for (std::int32_t i = node.first_child; i != SequenceTree::kNone; i = tree_[i].next) {
    if (tree_[i].slot < 0) continue;
    now[static_cast<std::size_t>(tree_[i].slot)].parent_slot = here;
    set_open(slot, tree_[i].label, false);
  }
}

void Beams::leave(std::size_t slot) {
  SequenceTree::Node& node = tree_[states[slot].node];
  node.slot = SequenceTree::kNone;
  if (now[slot].parent_slot >= 0) {
    set_open(static_cast<std::size_t>(now[slot].parent_slot), node.label, true);
  }
  for (std::int32_t i = node.first_child; i != SequenceTree::kNone; i = tree_[i].next) {
    if (tree_[i].slot >= 0) now[static_cast<std::size_t>(tree_[i].slot)].parent_slot = -1;
  }
  tree_.release(states[slot].node);
}

void Beams::move(std::size_t from, std::size_t to) {
  now[to] = now[from];
  may_gap[to] = may_gap[from];
  is_closed[to] = is_closed[from];
  closed[to] = closed[from];
  states[to] = states[from];
  for (std::size_t i = 0; i < num_words_; ++i) {
    open_[to * num_words_ + i] = open_[from * num_words_ + i];
  }
  SequenceTree::Node& node = tree_[states[to].node];
  node.slot = static_cast<std::int32_t>(to);
  for (std::int32_t i = node.first_child; i != SequenceTree::kNone; i = tree_[i].next) {
    if (tree_[i].slot < 0) continue;
    now[static_cast<std::size_t>(tree_[i].slot)].parent_slot = static_cast<std::int32_t>(to);
  }
}

void Beams::exchange(const std::vector<std::int32_t>& leaving,
                     const std::vector<Newcomer>& coming, std::size_t num_coming) {
  for (const std::int32_t slot : leaving) leave(static_cast<std::size_t>(slot));
  std::size_t filled = 0;
  for (std::size_t i = 0; i < num_coming; ++i) {
    const Newcomer& newcomer = coming[i];
    if (filled < leaving.size()) {
      enter(static_cast<std::size_t>(leaving[filled++]), newcomer);
      continue;
    }
    if (size_ == states.size()) grow();
    enter(size_++, newcomer);
  }
  // Fills the holes, starting with the last, with beams from the end, so no hole is ever moved.
  for (std::size_t i = leaving.size(); i > filled; --i) {
    const auto hole = static_cast<std::size_t>(leaving[i - 1]);
    --size_;
    if (hole != size_) move(size_, hole);
  }
}

}  // namespace word_beam
